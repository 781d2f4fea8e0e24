/* The pages of one layer's KV cache, and their elements in any form. */
#pragma once

#include "numbers.h"

#define WIDEST 576  /* a head */
#define ALONE 65536 /* products for which waking other threads takes longer than they save */

enum { INT8 = 3, E4M3 = 4 };

/* Keys, or values: [blocks, kv_heads, block_size, width], each [width] a row. */
typedef struct {
    int64_t width;    /* a multiple of LANES */
    int32_t kind;     /* F32, BF16, F16; or codes: INT8, E4M3 */
    void *elements;
    uint16_t *scales; /* bfloat16 [blocks, kv_heads, block_size]: row = codes * scale; NULL: none */
} stored;

typedef struct {
    int64_t kv_heads, block_size;
    stored keys, values;
} pages;

/* LANES elements. Those of E4M3 are 2^-8 of what they are: `read_scales` has the rest. */
INLINE floats load_stored(const void *from, int64_t place, const int kind) {
    if (kind == INT8) return from_int8((const int8_t *)from + place);
    if (kind == E4M3) return from_e4m3((const uint8_t *)from + place);
    return load_scales(from, place, kind);
}

/* Bring `count` elements near that are read soon: pages are too short, and lie too far from each
 * other, for the processor to see where a sequence goes on. */
INLINE void fetch_stored(const void *from, int64_t place, int64_t count, const int kind) {
    const int64_t size = kind == F32 ? 4 : kind >= INT8 ? 1 : 2;
    const char *at = (const char *)from + place * size;
    for (int64_t byte = 0; byte < count * size; byte += 64) _mm_prefetch(at + byte, _MM_HINT_T0);
}

/* Of `count` rows. */
INLINE void read_scales(float *to, const stored *of, const int64_t *rows, int64_t count) {
    const float more = of->kind == E4M3 ? 256.0f : 1.0f;
    for (int64_t i = 0; i < count; i++) to[i] = from_bfloat16(of->scales[rows[i]]) * more;
}
