/* The tile registers of AMX, where the compiler may use them: eight of 16 rows of 64 bytes.
 *
 *   0 to 3  sums [16 rows][16 columns], int32 or float32
 *   4, 5    left operands [16 rows][64 bytes], of which `step` are used
 *   6, 7    right operands [step / 4][16 columns][4 bytes]
 */
#pragma once

#include "numbers.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__) && \
    defined(__AVX512BF16__)
#define TILES 1
#else
#define TILES 0
#endif

extern int tiles_allowed; /* by the operating system; set when the library is loaded */

#if TILES

/* By hand: gcc 12 does not see that these read and write memory. */
#define TILE_LOAD(n, from, apart) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n : : "r"(from), "r"((int64_t)(apart)) : "memory")
/* The same of what passes by once: it takes no room in the first cache. */
#define TILE_PASS(n, from, apart) \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #n : : "r"(from), "r"((int64_t)(apart)) : "memory")
#define TILE_STORE(n, to, apart) \
    __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(apart)) : "memory")
#define TILE_ZERO(n) __asm__ volatile("tilezero %tmm" #n)
#define TILE_DOT(operation, sum, left, right) \
    __asm__ volatile(operation " %tmm" #right ", %tmm" #left ", %tmm" #sum)

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Shape the tiles of this thread. step: bytes of a row of the left operands, 64 or 32. Returns what
 * was there before: oneDNN keeps its own shapes between products. */
INLINE tile_shapes begin_tiles(int64_t step) {
    static const tile_shapes wide = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64},
                                     {16, 16, 16, 16, 16, 16, 16, 16}};
    static const tile_shapes narrow = {1, 0, {0}, {64, 64, 64, 64, 32, 32, 64, 64},
                                       {16, 16, 16, 16, 16, 16, 8, 8}};
    tile_shapes before;
    __asm__ volatile("sttilecfg %0" : "=m"(before));
    __asm__ volatile("ldtilecfg %0" : : "m"(*(step == 64 ? &wide : &narrow)));
    return before;
}

/* The first `count` numbers of a vector, or all. */
INLINE void write_lanes(void *to, int64_t place, int64_t count, floats from, int type) {
    const __mmask16 lanes = count >= LANES ? 0xffff : (__mmask16)((1 << count) - 1);
    if (type == F32) _mm512_mask_storeu_ps((float *)to + place, lanes, from);
    else if (type == BF16)
        _mm256_mask_storeu_epi16((uint16_t *)to + place, lanes, (__m256i)_mm512_cvtneps_pbh(from));
    else
        _mm256_mask_storeu_epi16((uint16_t *)to + place, lanes,
                                 _mm512_cvtps_ph(from, _MM_FROUND_TO_NEAREST_INT));
}

/* Rows become columns. */
INLINE void transpose(bytes r[16]) {
    bytes t[16];
    UNROLLED(i, 8) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLLED(i, 4) UNROLLED(n, 2) {
        r[4 * i + 2 * n] = _mm512_unpacklo_epi64(t[4 * i + n], t[4 * i + n + 2]);
        r[4 * i + 2 * n + 1] = _mm512_unpackhi_epi64(t[4 * i + n], t[4 * i + n + 2]);
    }
    UNROLLED(n, 4) {
        const bytes a = _mm512_shuffle_i32x4(r[n], r[4 + n], 0x88);
        const bytes b = _mm512_shuffle_i32x4(r[n], r[4 + n], 0xdd);
        const bytes c = _mm512_shuffle_i32x4(r[8 + n], r[12 + n], 0x88);
        const bytes d = _mm512_shuffle_i32x4(r[8 + n], r[12 + n], 0xdd);
        t[n] = _mm512_shuffle_i32x4(a, c, 0x88), t[8 + n] = _mm512_shuffle_i32x4(a, c, 0xdd);
        t[4 + n] = _mm512_shuffle_i32x4(b, d, 0x88), t[12 + n] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    UNROLLED(i, 16) r[i] = t[i];
}

INLINE void end_tiles(const tile_shapes *before) {
    if (before->palette) __asm__ volatile("ldtilecfg %0" : : "m"(*before));
    else __asm__ volatile("tilerelease");
}

#endif
