/* The pages of one layer's KV cache, their elements in any form, and a few rows of queries over the
 * keys of one part of a sequence. */
#pragma once

#include <math.h>

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
    return load_numbers(from, place, kind);
}

/* Of one element. */
INLINE int64_t stored_bytes(const int kind) { return kind == F32 ? 4 : kind >= INT8 ? 1 : 2; }

/* Prefetch `count` elements: pages are too short, and lie too far from each other, for the hardware
 * prefetcher. Into L2: a core can have few L1 misses outstanding. */
INLINE void fetch_stored(const void *from, int64_t place, int64_t count, const int kind) {
    const int64_t size = stored_bytes(kind);
    const char *at = (const char *)from + place * size;
    for (int64_t byte = 0; byte < count * size; byte += 64) _mm_prefetch(at + byte, _MM_HINT_T1);
}

/* Of `count` rows. */
INLINE void read_scales(float *to, const stored *of, const int64_t *rows, int64_t count) {
    const float more = of->kind == E4M3 ? 256.0f : 1.0f;
    for (int64_t i = 0; i < count; i++) to[i] = from_bfloat16(of->scales[rows[i]]) * more;
}

#define PART 512 /* keys: with 128 bfloat16 each, 128 KiB, which stay near while rows read them */
#define AHEAD 32 /* keys: how far before they are needed they are fetched */
#define ROWS 4   /* of queries at a time */
#if WIDE_TILES
#define MOST_ROWS 4
#define ACROSS(R) ((R) > 2 ? 4 : 8) /* vectors of a value at a time */
#else
#define MOST_ROWS 1 /* too few registers for more */
#define ACROSS(R) 4
#endif

/* What some of the keys come to for one row of queries. */
typedef struct {
    float largest, total; /* score; sum of e^(score - largest). No key was seen: -INFINITY and 0 */
    float sum[];          /* of the values, each times that power [value_dim] */
} found;

/* Keys of one part that lie from `first` to before `end`, counted from the part's beginning. */
typedef struct {
    int64_t first, end;
    int64_t beside; /* rows from a key to the same one of the next head, to prefetch; 0: do not */
    int64_t place[PART]; /* rows of the pages; of keys before `first`, any */
    float key_scale[PART], value_scale[PART]; /* where they are quantized */
} keys;

INLINE void find_keys(keys *k, const pages *p, const int32_t *table, int64_t start, int64_t head) {
    const int64_t size = p->block_size;
    int64_t l = k->first;
    for (int64_t block = (start + l) / size; l < k->end; block++) {
        const int64_t base = (table[block] * p->kv_heads + head) * size - block * size + start;
        const int64_t until = least((block + 1) * size - start, k->end);
        for (; l < until; l++) k->place[l] = base + l;
    }
    /* whole vectors of keys are computed: those beside the ones that are there are some of them */
    for (l = k->first / LANES * LANES; l < k->first; l++) k->place[l] = k->place[k->first];
    for (l = k->end; l % LANES; l++) k->place[l] = k->place[k->end - 1];
    const int64_t from = k->first / LANES * LANES;
    if (p->keys.scales) read_scales(k->key_scale + from, &p->keys, k->place + from, l - from);
    if (p->values.scales) read_scales(k->value_scale + from, &p->values, k->place + from, l - from);
}

/* scores [R][PART] of R rows of queries. Prefetches the first values, which are read next. */
INLINE void score(const keys *k, const pages *p, const float *q, float *scores, const int R,
                  const int kind) {
    const stored *of = &p->keys, *next = &p->values;
    const int64_t width = of->width;
    for (int64_t l = k->first / 4 * 4; l < k->end; l += 4) {
        floats total[ROWS][4];
        int64_t from[4];
        UNROLLED(n, 4) {
            from[n] = k->place[l + n] * width;
            const int64_t ahead = l + n + AHEAD, past = ahead - k->end;
            if (past < 0) fetch_stored(of->elements, k->place[ahead] * width, width, kind);
            else if (k->first + past < k->end)
                fetch_stored(next->elements, k->place[k->first + past] * next->width, next->width,
                             next->kind);
        }
        UNROLLED(r, R) UNROLLED(n, 4) total[r][n] = no_floats();
        for (int64_t d = 0; d < width; d += LANES) {
            floats key[4];
            UNROLLED(n, 4) key[n] = load_stored(of->elements, from[n] + d, kind);
            UNROLLED(r, R) {
                const floats query = load_floats(q + r * width + d);
                UNROLLED(n, 4)
                    total[r][n] = plus_product(total[r][n], key[n], query);
            }
        }
        UNROLLED(r, R)
            _mm_storeu_ps(scores + r * PART + l,
                          sums_of_four(total[r][0], total[r][1], total[r][2], total[r][3]));
    }
}

/* Of a whole number of vectors; NaN is not seen. */
INLINE float largest_score(const float *scores, int64_t count) {
    float lanes[LANES], found = -INFINITY;
    floats so_far = splat_float(-INFINITY);
    for (int64_t l = 0; l < count; l += LANES) so_far = larger(load_floats(scores + l), so_far);
    store_floats(lanes, so_far);
    for (int l = 0; l < LANES; l++) found = lanes[l] > found ? lanes[l] : found;
    return found;
}

/* Scores of one row become powers of e, zero where the row sees no key. `first` and `end`: what it
 * sees. */
INLINE void weigh(const pages *p, float softcap, const keys *k, float *scores, int64_t first,
                  int64_t end, found *to) {
    const int64_t from = k->first / LANES * LANES, until = (k->end + LANES - 1) / LANES * LANES;
    first = least(most(first, from), until), end = least(most(end, from), until);
    to->largest = -INFINITY, to->total = 0;
    if (p->keys.scales)
        for (int64_t l = from; l < until; l++) scores[l] *= k->key_scale[l];
    if (softcap > 0) {
        const floats cap = splat_float(softcap), one = splat_float(1.0f), two = splat_float(2.0f);
        for (int64_t l = from; l < until; l += LANES) {
            const floats e = power(scaled(load_floats(scores + l), splat_float(2.0f / softcap)));
            store_floats(scores + l, less(cap, quotient(scaled(cap, two), plus_scaled(one, e, 1.0f))));
        }
    }
    for (int64_t l = from; l < first; l++) scores[l] = -INFINITY;
    for (int64_t l = end; l < until; l++) scores[l] = -INFINITY;
    if (first >= end) { /* also keeps infinity less infinity from becoming a number's weight */
        for (int64_t l = from; l < until; l++) scores[l] = 0;
        return;
    }
    const float largest = largest_score(scores + from, until - from);
    floats sum = no_floats();
    for (int64_t l = from; l < until; l += LANES) {
        const floats below = less(load_floats(scores + l), splat_float(largest));
        const floats e = none_below(-87.0f, below, power(below)); /* too small for a normal number */
        store_floats(scores + l, e);
        sum = plus_scaled(sum, e, 1.0f);
    }
    to->largest = largest;
    to->total = _mm_cvtss_f32(sums_of_four(sum, sum, sum, sum));
    if (p->values.scales)
        for (int64_t l = from; l < until; l++) scores[l] *= k->value_scale[l];
}

/* Elements `d` to `d` + N vectors of the values, by the weights of R rows. */
INLINE void gather(const keys *k, const pages *p, const float *weights, int64_t d,
                   float *const to[ROWS], const int R, const int N, const int kind) {
    const stored *of = &p->values;
    floats total[ROWS][8];
    UNROLLED(r, R) UNROLLED(n, N) total[r][n] = no_floats();
    for (int64_t l = k->first; l < k->end; l++) {
        const int64_t from = k->place[l] * of->width + d, past = l + AHEAD - k->end;
        floats value[8];
        if (past < 0)
            fetch_stored(of->elements, k->place[l + AHEAD] * of->width + d, N * LANES, kind);
        else if (d == 0 && k->beside && k->first + past < k->end)
            fetch_stored(p->keys.elements, (k->place[k->first + past] + k->beside) * p->keys.width,
                         p->keys.width, p->keys.kind);
        UNROLLED(n, N) value[n] = load_stored(of->elements, from + n * LANES, kind);
        UNROLLED(r, R) {
            const floats weight = splat_float(weights[r * PART + l]);
            UNROLLED(n, N) total[r][n] = plus_product(total[r][n], value[n], weight);
        }
    }
    UNROLLED(r, R) UNROLLED(n, N) store_floats(to[r] + d + n * LANES, total[r][n]);
}

INLINE void sum_values(const keys *k, const pages *p, const float *weights,
                       float *const to[ROWS], const int R, const int kind) {
    int64_t d = 0;
    for (; d + ACROSS(R) * LANES <= p->values.width; d += ACROSS(R) * LANES)
        gather(k, p, weights, d, to, R, ACROSS(R), kind);
    for (; d < p->values.width; d += LANES) gather(k, p, weights, d, to, R, 1, kind);
}

#define BY_ROWS(CALL)         \
    do {                      \
        if (rows == 4) {      \
            enum { R = 4 };   \
            CALL;             \
        } else if (rows == 2) { \
            enum { R = 2 };   \
            CALL;             \
        } else {              \
            enum { R = 1 };   \
            CALL;             \
        }                     \
    } while (0)

#define BY_KIND(CALL)                             \
    do {                                          \
        if (kind == BF16) CALL(BF16);             \
        else if (kind == F32) CALL(F32);          \
        else if (kind == F16) CALL(F16);          \
        else if (kind == INT8) CALL(INT8);        \
        else CALL(E4M3);                          \
    } while (0)

INLINE void score_rows(const keys *k, const pages *p, const float *q, float *scores, int rows) {
    const int kind = p->keys.kind;
#define SCORE(KIND) BY_ROWS(score(k, p, q, scores, R, KIND))
    BY_KIND(SCORE);
}

INLINE void sum_rows(const keys *k, const pages *p, const float *weights,
                     float *const to[ROWS], int rows) {
    const int kind = p->values.kind;
#define SUM(KIND) BY_ROWS(sum_values(k, p, weights, to, R, KIND))
    BY_KIND(SUM);
}
