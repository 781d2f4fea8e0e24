/* Products of tiles, 16 rows of 64 bytes: by AMX, or of bfloat16 or float32 by vectors. */
#pragma once

#include "numbers.h"

#define TILES WIDE_TILES

#if TILES && defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define AMX 1
#else
#define AMX 0
#endif

/* Whether vectors multiply float32: those of Intel compute the products of bfloat16 (vdpbf16ps) at
 * half that rate, those of AMD at twice that rate, where build.py defines BFLOAT16_DOTS. */
#if AMX || (defined(BFLOAT16_DOTS) && defined(__AVX512BF16__))
#define FLOATS 0
typedef uint16_t element;
#else
#define FLOATS 1
typedef float element;
#endif
#define EACH (FLOATS ? 1 : 2) /* elements in a lane */
#define STEP (16 * EACH)      /* elements of a tile's row */

enum { NO_TILES, VECTORS, REGISTERS, FLOAT_VECTORS };
extern int tiles_made_of; /* set when the library is loaded: the operating system may refuse AMX */

/* One or two tiles of an operand, the second `below` the first, and those of the next inputs a `step`
 * further; bytes. passes: takes no room in the first cache. */
typedef struct {
    const void *at;
    int64_t below, apart, step; /* apart: between rows */
    int passes;
} operand;

/* The sums of up to two left by two right tiles; bytes. */
typedef struct {
    void *at;
    int64_t below, beside, apart; /* to those of the second left and right tile, between rows */
} tile_sums;

enum { NUMBERS, SIGNED_CODES, UNSIGNED_CODES }; /* right operands; left ones are signed */

/* What is done beside the products: after the n-th one of a step of inputs. */
typedef void meanwhile(void *with, int64_t step, int n);
INLINE void nothing(void *with, int64_t step, int n) {}

/* Cache lines of the rows of a matrix, to be brought to the second cache. */
typedef struct {
    const uint8_t *at;
    int64_t left, row, here; /* lines: to bring, of a row, of this row that were brought */
    int64_t skip;            /* bytes from the end of a row to the next one */
    int64_t rate;            /* lines for each call of `bring` */
} lines;

/* Rate at which as many weights are brought as are used, in 32 rows at a time: of the next chunk,
 * beside the products of this one. 16 rows take half of the products. */
INLINE int64_t weight_rate(int64_t rows) {
    return rows > 16 ? (8 + (rows + 31) / 32 - 1) / ((rows + 31) / 32) : 16;
}

INLINE void bring(lines *of) {
    for (int64_t i = 0; i < of->rate && of->left > 0; i++, of->left--, of->at += 64) {
        _mm_prefetch((const char *)of->at, _MM_HINT_T1);
        if (++of->here == of->row) of->here = 0, of->at += of->skip;
    }
}

#if AMX

/* By hand: gcc 12 does not see that these read and write memory. Registers:
 *
 *   0 to 3  sums [16 rows][16 columns], int32 or float32
 *   4, 5    left operands [16 rows][64 bytes], of which `step` are used
 *   6, 7    right operands [step / 4][16 columns][4 bytes]
 */
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

INLINE void end_tiles(const tile_shapes *before) {
    if (before->palette) __asm__ volatile("ldtilecfg %0" : : "m"(*before));
    else __asm__ volatile("tilerelease");
}

/* Adds the products of L left tiles by R right ones, of `count` tiles of inputs, to sums, or puts them
 * there where `first`. */
INLINE void multiply_tiles(operand left, operand right, int64_t count, int first, tile_sums sums,
                           meanwhile also, void *with, const int L, const int R, const int kind) {
    uint8_t *sum = sums.at, *lower = sum + sums.below;
    if (first) {
        TILE_ZERO(0);
        if (R == 2) TILE_ZERO(1);
        if (L == 2) TILE_ZERO(2);
        if (L == 2 && R == 2) TILE_ZERO(3);
    } else {
        TILE_LOAD(0, sum, sums.apart);
        if (R == 2) TILE_LOAD(1, sum + sums.beside, sums.apart);
        if (L == 2) TILE_LOAD(2, lower, sums.apart);
        if (L == 2 && R == 2) TILE_LOAD(3, lower + sums.beside, sums.apart);
    }
#define OPERAND(n, of, from)                          \
    do {                                              \
        if (of.passes) TILE_PASS(n, from, of.apart);  \
        else TILE_LOAD(n, from, of.apart);            \
    } while (0)
#define DOT(sum, left, right)                                           \
    do {                                                                \
        if (kind == NUMBERS) TILE_DOT("tdpbf16ps", sum, left, right); \
        else if (kind == SIGNED_CODES) TILE_DOT("tdpbssd", sum, left, right); \
        else TILE_DOT("tdpbsud", sum, left, right);                     \
    } while (0)
    const uint8_t *rows = left.at, *columns = right.at;
    for (int64_t k = 0; k < count; k++, rows += left.step, columns += right.step) {
        OPERAND(4, left, rows);
        OPERAND(6, right, columns);
        DOT(0, 4, 6);
        also(with, k, 0);
        if (R == 2) {
            OPERAND(7, right, columns + right.below);
            DOT(1, 4, 7);
            also(with, k, 1);
        }
        if (L == 2) {
            OPERAND(5, left, rows + left.below);
            DOT(2, 5, 6);
            also(with, k, 2);
            if (R == 2) DOT(3, 5, 7);
            if (R == 2) also(with, k, 3);
        }
    }
#undef OPERAND
#undef DOT
    TILE_STORE(0, sum, sums.apart);
    if (R == 2) TILE_STORE(1, sum + sums.beside, sums.apart);
    if (L == 2) TILE_STORE(2, lower, sums.apart);
    if (L == 2 && R == 2) TILE_STORE(3, lower + sums.beside, sums.apart);
}

#elif TILES

typedef int64_t tile_shapes;
INLINE tile_shapes begin_tiles(int64_t step) { return step; }
INLINE void end_tiles(const tile_shapes *before) { (void)before; }

/* sum + the products of the elements in every lane. By no intrinsic: see plus_product. */
INLINE floats dot_lanes(floats sum, bytes a, bytes b) {
    if (FLOATS) return plus_product(sum, (floats)a, (floats)b);
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* As with AMX, for numbers: eight rows by the columns of R tiles, in registers. */
INLINE void multiply_tiles(operand left, operand right, int64_t count, int first, tile_sums sums,
                           meanwhile also, void *with, const int L, const int R, const int kind) {
    for (int part = 0; part < 2 * L; part++) {
        const int64_t below = part / 2 * left.below + part % 2 * 8 * left.apart;
        const uint8_t *rows = (const uint8_t *)left.at + below, *columns = right.at;
        uint8_t *to = (uint8_t *)sums.at + part / 2 * sums.below + part % 2 * 8 * sums.apart;
        floats sum[8][2];
        UNROLLED(r, 8) UNROLLED(c, R) {
            const float *from = (const float *)(to + r * sums.apart + c * sums.beside);
            sum[r][c] = first ? no_floats() : load_floats(from);
        }
        for (int64_t k = 0; k < count; k++, rows += left.step, columns += right.step) {
            if (part == 0) also(with, k, 0);
            UNROLLED(r, 8) _mm_prefetch((const char *)rows + left.step + r * left.apart, _MM_HINT_T0);
            for (int lane = 0; lane < 16; lane++) {
                const uint8_t *at = columns + lane * right.apart;
                bytes column[2];
                UNROLLED(c, R) column[c] = load_bytes(at + c * right.below);
                UNROLLED(r, 8) {
                    const ints row = splat(four((const int8_t *)rows + r * left.apart + 4 * lane));
                    UNROLLED(c, R) sum[r][c] = dot_lanes(sum[r][c], row, column[c]);
                }
            }
        }
        UNROLLED(r, 8) UNROLLED(c, R)
            store_floats((float *)(to + r * sums.apart + c * sums.beside), sum[r][c]);
    }
}

#endif

#if TILES

/* As put_numbers, without a branch for the last lanes, which made products around it 3 to 6 % slower. */
INLINE void write_lanes(void *to, int64_t place, int64_t count, floats from, int type) {
    const __mmask16 lanes = count >= LANES ? 0xffff : (__mmask16)((1 << count) - 1);
    if (type == F32) _mm512_mask_storeu_ps((float *)to + place, lanes, from);
    else if (type == BF16)
        _mm256_mask_storeu_epi16((uint16_t *)to + place, lanes, to_bfloat16s(from));
    else
        _mm256_mask_storeu_epi16((uint16_t *)to + place, lanes,
                                 _mm512_cvtps_ph(from, _MM_FROUND_TO_NEAREST_INT));
}

/* The first `count` numbers of two vectors, or all: of bfloat16 as one line. */
INLINE void write_two(void *to, int64_t place, int64_t count, floats first, floats second, int type) {
    if (type == BF16) {
        const __mmask32 lanes = count >= 32 ? 0xffffffff : (1u << count) - 1;
        const __m512i both = _mm512_castsi256_si512(to_bfloat16s(first));
        _mm512_mask_storeu_epi16((uint16_t *)to + place, lanes,
                                 _mm512_inserti64x4(both, to_bfloat16s(second), 1));
        return;
    }
    write_lanes(to, place, count, first, type);
    if (count > LANES) write_lanes(to, place + LANES, count - LANES, second, type);
}

/* The numbers of two inputs, each of 16 outputs, as right operands. */
INLINE void store_inputs(element *to, floats first, floats second) {
#if FLOATS
    store_floats(to, first);
    store_floats(to + 16, second);
#else
    const __m512i order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
        23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    store_bytes((uint8_t *)to, _mm512_permutexvar_epi16(order, both));
#endif
}

/* STEP bfloat16 as elements. */
INLINE bytes load_step(const uint16_t *from) {
    return FLOATS ? (bytes)from_bfloat16s(from) : load_bytes((const uint8_t *)from);
}

/* dequantized.c: a panel of its weights as right operands, [inputs / EACH][16 outputs][EACH]. */
void numbers_as_operands(const packed *w, int64_t panel, element *to);

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

#endif
