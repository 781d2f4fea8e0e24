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

/* To sums [R][S], the products of a group's codes, which lie `apart` from one panel to the next, and
 * of R rows of x. fetches: prefetch the codes `ahead` bytes further. */
INLINE void add_products(ints sums[4][4], const uint8_t *codes, int64_t apart, int64_t ahead,
                         const int8_t *x, int64_t stride, int64_t inputs, const int R,
                         const int S, const int bits, const int fetches) {
    for (int64_t k = 0; k < inputs; k += bits == 4 ? 8 : 4, codes += 64) {
        bytes first[4], second[4];
        UNROLLED(s, S) {
            const uint8_t *from = codes + s * apart;
            if (fetches) _mm_prefetch((const char *)from + ahead, _MM_HINT_T1);
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

/* R rows from `row` on by S panels from `panel` on, whose codes are `all`, of so many bits: out
 * [R][S * 16]. fetches: these rows are the first to read the codes. */
INLINE void tile(const packed *w, const activations *x, int64_t row, int64_t panel,
                 const uint8_t *all, float *out, int fetches, const int R, const int S,
                 const int bits) {
    const int64_t groups = w->inputs / w->group, panel_bytes = w->inputs * bits / 8 * LANES;
    floats total[4][4];
    UNROLLED(r, R) UNROLLED(s, S) total[r][s] = no_floats();
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *codes = all + g * w->group * bits / 8 * LANES;
        const int64_t start = row * x->stride + g * w->group;
        const int64_t ahead = distance(w, g, S, bits);
        ints sums[4][4];
        UNROLLED(r, R) UNROLLED(s, S) sums[r][s] = no_ints();
        const int8_t *high = x->high + start;
        if (fetches)
            add_products(sums, codes, panel_bytes, ahead, high, x->stride, w->group, R, S, bits, 1);
        else add_products(sums, codes, panel_bytes, ahead, high, x->stride, w->group, R, S, bits, 0);
        int has_low = 0;
        UNROLLED(r, R) has_low |= x->has_low[g * x->rows + row + r];
        if (has_low) { /* of the other rows there may be anything */
            ints low[4][4];
            UNROLLED(r, R) UNROLLED(s, S) low[r][s] = no_ints();
            add_products(low, codes, panel_bytes, ahead, x->low + start, x->stride, w->group, R, S,
                         bits, 0);
            UNROLLED(r, R) if (x->has_low[g * x->rows + row + r])
                UNROLLED(s, S) sums[r][s] = joined(sums[r][s], low[r][s]);
        }
        UNROLLED(s, S) {
            const int64_t place = ((panel + s) * groups + g) * LANES;
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
    UNROLLED(r, R) UNROLLED(s, S) store_floats(out + (r * S + s) * LANES, total[r][s]);
}

INLINE void keep(const packed *w, int64_t row, int64_t panel, const float *found, int R, int S,
                 void *y, int type) {
    const int64_t start = panel * LANES, left = w->outputs - start;
    for (int r = 0; r < R; r++)
        write_floats(y, (row + r) * w->outputs + start, found + r * S * LANES,
                     left < S * LANES ? left : S * LANES, type);
}

#define WIDENED_ROWS 24 /* from which codes of 4 bits are widened once for all rows */

#define TILE(R, S)                                                                  \
    do {                                                                            \
        tile(w, x, row, panel, codes, found, row == first && fetches, R, S, bits);  \
        keep(w, row, panel, found, R, S, y, type);                                  \
    } while (0)

/* Rows from `row` to `end` by S panels, several rows at a time. */
INLINE void rows_by_panels(const packed *w, const activations *x, int64_t row, int64_t end,
                           int64_t panel, const uint8_t *codes, int fetches, const int S,
                           const int bits, void *y, int type) {
    float found[4 * 4 * LANES];
    const int64_t first = row;
#if WIDE_TILES
    for (; row + 4 <= end; row += 4) TILE(4, S);
#endif
    for (; row + 2 <= end; row += 2) TILE(2, S);
    for (; row < end; row++) TILE(1, S);
}

/* Panels from `panel` to `last`. Four at once, that a single row has enough sums under way to hide
 * what an addition takes. near: for codes of 4 bits that many rows use. */
INLINE void panels(const packed *w, const activations *x, int64_t row, int64_t end, int64_t panel,
                   int64_t last, const int bits, uint8_t *near, void *y, int type) {
    const int64_t panel_bytes = w->inputs * bits / 8 * LANES;
#if WIDE_TILES
    for (; panel + 4 <= last; panel += 4) {
        const uint8_t *codes = w->codes + panel * panel_bytes;
        if (bits == 4 && end - row >= WIDENED_ROWS) {
            UNROLLED(n, 4) widen_codes(w, panel + n, near + n * w->inputs * LANES, 0);
            rows_by_panels(w, x, row, end, panel, near, 0, 4, 8, y, type);
        } else {
            rows_by_panels(w, x, row, end, panel, codes, 1, 4, bits, y, type);
        }
    }
#endif
    for (; panel < last; panel++)
        rows_by_panels(w, x, row, end, panel, w->codes + panel * panel_bytes, 1, 1, bits, y, type);
}

#define ROWS_AT_ONCE 128 /* whose activations stay in a core's cache while panels pass by */

/* All rows by the panels from `first` to `last`. */
static void panels_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                      int64_t last, uint8_t *near, void *y, int type) {
    for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
        const int64_t end = least(row + ROWS_AT_ONCE, rows);
        if (w->bits == 4) panels(w, x, row, end, first, last, 4, near, y, type);
        else panels(w, x, row, end, first, last, 8, near, y, type);
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
