/* Products with weights of 4 and 8 bits, read once and as they are packed.
 *
 *   y[t, n] = sum over groups g of
 *             ws[n, g] * xs[t, g] * sum over k in g of (c[n, k] - z[n, g]) * q[t, k]
 *
 * c are unsigned codes, z their zero points, q activations as integers. The inner sum is
 * one of integers and exact; groups are added in their order, each row by itself: what a row comes
 * to depends neither on the number of rows nor on how they are divided among threads.
 *
 * Packed: panels of 16 outputs, 64 bytes at a time, for each output four inputs beside each other:
 *
 *   8 bits:  byte [panel, k / 4, output, k % 4]
 *   4 bits:  byte [panel, k / 8, output, k % 4], of 8 inputs 0 to 3 in the low half, 4 to 7 in the
 *            high one
 *
 * Scales and zero points lie as [panel, group, output].
 */
#include "integer_tiles.h"

#define TILE_ROWS 6 /* rows at once: 24 sums in 32 registers, or 12 of half a vector in 16 */
#if WIDE_TILES
#define BESIDE 4 /* panels at once: a single row too has enough sums to hide an addition's latency */
#else
#define BESIDE 1
#endif
#define NEAREST 256      /* inputs at a time: their codes stay in L1 while all rows are multiplied */
#define ROWS_AT_ONCE 128 /* their activations stay in L2 while all panels are multiplied */
#define MOST_TILES 16    /* of rows, up to which memory may be slower than the products */
#define NARROW 4096      /* inputs, whose next codes are prefetched for more rows too: 1 MB of cache has room */
#define WIDENED_ROWS 64  /* from which codes of 4 bits are widened once for all rows */

enum { FETCH_NOTHING, FETCH_AHEAD, FETCH_NEXT }; /* what to prefetch during the products */

/* Inputs k to before `end`, of rows from `row` to before `last`, by panels from `panel` on. */
typedef struct {
    int64_t row, last, panel, k, end;
    const uint8_t *codes; /* of these inputs */
    int64_t apart;        /* from one panel to the next */
    lines next;           /* prefetched meanwhile */
} piece;

/* To sums [R][S], the products of codes, which lie `apart` from one panel to the next, and of R rows of
 * x. ahead: bytes from those that are used to those that are fetched. */
INLINE void add_products(ints sums[TILE_ROWS][BESIDE], const uint8_t *codes, int64_t apart, int64_t ahead,
                         const int8_t *x, int64_t stride, int64_t inputs, lines *next, const int R,
                         const int S, const int bits, const int fetches) {
    for (int64_t k = 0; k < inputs; k += bits == 4 ? 8 : 4, codes += 64) {
        bytes first[BESIDE], second[BESIDE];
        if (fetches == FETCH_NEXT) bring(next);
        UNROLLED(s, S) {
            const uint8_t *from = codes + s * apart;
            if (fetches == FETCH_AHEAD) _mm_prefetch((const char *)from + ahead, _MM_HINT_T1);
            first[s] = load_bytes(from);
            if (bits == 4) second[s] = high_nibbles(first[s]), first[s] = low_nibbles(first[s]);
        }
        UNROLLED(r, R) {
            const int8_t *at = x + r * stride + k;
            UNROLLED(s, S) {
                if (bits == 4) {
                    sums[r][s] = dot_nibbles(sums[r][s], first[s], four(at));
                    sums[r][s] = dot_nibbles(sums[r][s], second[s], four(at + 4));
                } else {
                    sums[r][s] = dot_bytes(sums[r][s], first[s], four(at));
                }
            }
        }
    }
}

/* Prefetch distance from the codes of group g of S panels. Past the end of a panel lie the S - 1
 * that are read beside it; the next ones to read come after those. */
INLINE int64_t distance(const packed *w, int64_t g, const int S, const int bits) {
    const int64_t panel_bytes = w->inputs * (bits * LANES / 8);
    const int64_t group_bytes = w->group * (bits * LANES / 8);
    const int ends = group_bytes <= AHEAD && (g + 1) * group_bytes + AHEAD > panel_bytes;
    return AHEAD + (ends ? (S - 1) * panel_bytes : 0);
}

/* A piece's R rows from `row` on, to `held` [R][S][LANES]: their totals. carries: all inputs share one
 * scale and come in pieces; until the last one `held` keeps sums, to which the next one adds. */
INLINE void tile(const packed *w, const activations *x, const piece *p, int64_t row, void *held,
                 lines *next, const int R, const int S, const int bits, const int carries,
                 const int fetches) {
    const int64_t groups = carries ? 1 : w->inputs / w->group;
    floats total[TILE_ROWS][BESIDE];
    UNROLLED(r, R) UNROLLED(s, S) total[r][s] = no_floats();
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *codes = p->codes + g * w->group * bits / 8 * LANES;
        const int64_t start = row * x->stride + p->k + g * w->group, ahead = distance(w, g, S, bits);
        const int64_t inputs = carries ? p->end - p->k : w->group;
        ints sums[TILE_ROWS][BESIDE];
        UNROLLED(r, R) UNROLLED(s, S)
            sums[r][s] = carries && p->k ? load_ints((int32_t *)held + (r * S + s) * LANES) : no_ints();
#define ADD(TO, FROM, FETCHES)                                                                      \
    add_products(TO, codes, p->apart, ahead, (FROM) + start, x->stride, inputs, next, R, S, bits, FETCHES)
        ADD(sums, x->high, fetches);
        if (carries && p->end < w->inputs) {
            UNROLLED(r, R) UNROLLED(s, S) store_ints((int32_t *)held + (r * S + s) * LANES, sums[r][s]);
            return;
        }
        int has_low = 0;
        UNROLLED(r, R) has_low |= x->has_low[g * x->rows + row + r];
        if (has_low) { /* of the other rows there may be anything */
            ints low[TILE_ROWS][BESIDE];
            UNROLLED(r, R) UNROLLED(s, S) low[r][s] = no_ints();
            ADD(low, x->low, FETCH_NOTHING);
            UNROLLED(r, R) if (x->has_low[g * x->rows + row + r])
                UNROLLED(s, S) sums[r][s] = joined(sums[r][s], low[r][s]);
        }
#undef ADD
        UNROLLED(s, S) {
            const int64_t place = ((p->panel + s) * groups + g) * LANES;
            const floats scales = load_numbers(w->scales, place, w->scale_type);
            const ints zeros = w->zeros ? widened((const uint8_t *)w->zeros + place)
                                        : splat(w->bits == 4 ? 8 : 128);
            UNROLLED(r, R) {
                const int64_t at = g * x->rows + row + r;
                const ints sum = minus(sums[r][s], times(zeros, splat(x->sums[at])));
                const floats found = scaled(as_floats(sum), scales);
                total[r][s] = plus_scaled(total[r][s], found, x->scales[at]);
            }
        }
    }
    UNROLLED(r, R) UNROLLED(s, S) store_floats((float *)held + (r * S + s) * LANES, total[r][s]);
}

/* A piece, several rows at a time. held [rows][S][LANES]. fetches: what the first tile prefetches; later
 * ones prefetch the rest of `next`. */
INLINE void rows_of(const packed *w, const activations *x, const piece *p, float *held, int fetches,
                    const int S, const int bits, const int carries) {
    lines next = p->next;
    int64_t row = p->row;
#define TILE(R, FETCHES) \
    tile(w, x, p, row, held + (row - p->row) * S * LANES, &next, R, S, bits, carries, FETCHES)
#define TILES_OF(R)                                                  \
    for (; IS_LEFT(R); row += (R), fetches = FETCH_NEXT) {           \
        if (fetches == FETCH_AHEAD) TILE(R, FETCH_AHEAD);            \
        else if (next.left) TILE(R, FETCH_NEXT);                     \
        else TILE(R, FETCH_NOTHING);                                 \
    }
/* The last eight rows as four and four, which is at least as fast as six and two. */
#define IS_LEFT(R) (row + (R) <= p->last && ((R) < 6 || row + 8 != p->last))
    TILES_OF(6)
    TILES_OF(4)
    TILES_OF(2)
    TILES_OF(1)
}

/* Separate functions: if they are one, gcc 12 spills the sums to memory. */
#define ROWS_OF(NAME, S, BITS, CARRIES)                                                             \
    static __attribute__((noinline)) void NAME(const packed *w, const activations *x, const piece *p, \
                                               float *held, int fetches) {                          \
        rows_of(w, x, p, held, fetches, S, BITS, CARRIES);                                          \
    }
ROWS_OF(one_of_4, 1, 4, 0)
ROWS_OF(one_of_8, 1, 8, 0)
ROWS_OF(one_of_8_whole, 1, 8, 1)
ROWS_OF(some_of_4, BESIDE, 4, 0)
ROWS_OF(some_of_8, BESIDE, 8, 0)
ROWS_OF(some_of_8_whole, BESIDE, 8, 1)

typedef void rows_by_panels(const packed *, const activations *, const piece *, float *, int);
static rows_by_panels *const by_one[] = {one_of_4, one_of_8, one_of_8_whole};
static rows_by_panels *const by_some[] = {some_of_4, some_of_8, some_of_8_whole};

/* The codes of `count` panels for inputs k to `end`, prefetched evenly over the `steps` of the products
 * before: memory has all of their time. */
static lines fetched_with(const packed *w, int64_t panel, int64_t count, int64_t k, int64_t end,
                          int64_t steps) {
    const int64_t panel_bytes = w->inputs * w->bits / 8 * LANES, start = k * w->bits / 8 * LANES;
    const int64_t line = (end - k) * w->bits / 8 * LANES / 64, left = count * line;
    return (lines){w->codes + panel * panel_bytes + start, left, line, 0, panel_bytes - 64 * line,
                   (left + steps - 1) / steps};
}

/* Rows from `row` to before `end` by the panels from `panel` to before `last`, `count` at once; returns
 * the first one that is not multiplied. near: for codes of 4 bits that many rows use. */
static int64_t panels(const packed *w, const activations *x, int64_t row, int64_t end, int64_t panel,
                      int64_t last, int64_t count, uint8_t *near, void *y, int type) {
    _Alignas(64) float held[ROWS_AT_ONCE * BESIDE * LANES];
    const int64_t tiles = (end - row + TILE_ROWS - 1) / TILE_ROWS, start = panel;
    const int64_t panel_bytes = w->inputs * w->bits / 8 * LANES;
    rows_by_panels *const *multiply = count == 1 ? by_one : by_some;
    const int kind = w->bits == 4 ? OF_4 : w->parts == 1 ? OF_8_WHOLE : OF_8;
    const int is_widened = WIDE_TILES && count > 1 && kind == OF_4 && end - row >= WIDENED_ROWS;
    const int is_few = tiles <= MOST_TILES, is_whole = kind == OF_8_WHOLE;
    const int has_next = tiles > 1 && !is_widened && (is_few || (is_whole && w->inputs <= NARROW));
    const int64_t pieces = is_few && has_next && is_whole ? (w->inputs + NEAREST - 1) / NEAREST : 1;
    const int64_t at_once = (w->inputs / 4 + pieces - 1) / pieces * 4; /* alike, for an even rate */
    for (; panel + count <= last; panel += count) {
        for (int64_t k = 0; k < w->inputs; k += at_once) {
            const int64_t until = least(k + at_once, w->inputs);
            const int64_t steps = tiles * (until - k) * w->bits / 32;
            const uint8_t *codes = w->codes + panel * panel_bytes + k * w->bits / 8 * LANES;
            piece p = {row, end, panel, k, until, codes, panel_bytes, {0}};
            if (has_next && until < w->inputs)
                p.next = fetched_with(w, panel, count, until, least(until + at_once, w->inputs), steps);
            else if (has_next && panel + 2 * count <= last)
                p.next = fetched_with(w, panel + count, count, 0, at_once, steps);
#if WIDE_TILES
            if (is_widened) {
                for (int64_t n = 0; n < count; n++)
                    widen_codes(w, panel + n, near + n * w->inputs * LANES, 0);
                p.codes = near, p.apart = w->inputs * LANES;
                multiply[OF_8](w, x, &p, held, FETCH_NOTHING);
                continue;
            }
#endif
            multiply[kind](w, x, &p, held, has_next && (k || panel > start) ? FETCH_NEXT : FETCH_AHEAD);
        }
        const int64_t output = panel * LANES, left = least(w->outputs - output, count * LANES);
        for (int64_t r = row; r < end; r++)
            write_floats(y, r * w->outputs + output, held + (r - row) * count * LANES, left, type);
    }
    return panel;
}

/* All rows by the panels from `first` to before `last`. */
static void panels_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                      int64_t last, uint8_t *near, void *y, int type) {
    for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
        const int64_t end = least(row + ROWS_AT_ONCE, rows);
        const int64_t left = panels(w, x, row, end, first, last, BESIDE, near, y, type);
        panels(w, x, row, end, left, last, 1, near, y, type);
    }
}

/* y [rows, outputs] = x [rows, inputs] @ w^T, both of number format `type`; scratch: of whole tiles
 * of 16 rows; for 4 bits followed, from the next cache line on, by CHUNK_BYTES or four panels of 8-bit
 * codes for each thread. */
void native_integer_product(const packed *w, const void *x, void *y, int64_t rows, int32_t type,
                    void *scratch, int32_t threads) {
    const int64_t groups = w->inputs / w->group;
    const int64_t whole = (rows + 15) / 16 * 16, stride = w->inputs + APART, size = whole * stride;
    activations a = {.inputs = w->inputs, .group = w->group, .groups = groups, .rows = whole,
                     .stride = stride};
    if (fits_tiles(w, rows)) a.step = w->group % 64 ? 32 : 64;
    a.scales = scratch;
    a.sums = (int32_t *)(a.scales + whole * groups);
    a.high = (int8_t *)(a.sums + whole * groups);
    a.low = w->parts == 2 ? a.high + size : 0;
    a.has_low = (uint8_t *)a.high + size * w->parts;
    const int64_t count = (w->outputs + LANES - 1) / LANES;
    uint8_t *own = (uint8_t *)(((uintptr_t)(a.has_low + whole * groups) + 63) / 64 * 64);
    if (a.step)
        for (int64_t g = 0; g < groups; g++) memset(a.has_low + g * whole + rows, 0, whole - rows);
    if (rows == 1) round_row(&a, 0, x, type);
#pragma omp parallel num_threads(threads)
    {
        if (rows > 1) {
#pragma omp for schedule(static)
            for (int64_t row = 0; row < rows; row++) round_row(&a, row, x, type);
        }
#pragma omp for schedule(static) nowait
        for (int32_t share = 0; share < threads; share++) {
            const int64_t first = count * share / threads, last = count * (share + 1) / threads;
            uint8_t *near = own + share * most(CHUNK_BYTES, 4 * LANES * w->inputs);
            if (a.step) tiles_of(w, &a, rows, first, last, near, y, type);
            else panels_of(w, &a, rows, first, last, near, y, type);
        }
    }
}
