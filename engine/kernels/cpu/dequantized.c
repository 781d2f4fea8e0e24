/* Products with codes that stand for numbers: float8_e4m3fn, places in a table of 16 (NF4, FP4, the
 * integers of 4 bits), or integers of 8 bits.
 *
 *   y[t, n] = sum over groups g of
 *             scale[n, g] * sum over k in g of (value(c[n, k]) - zero[n, g]) * x[t, k]
 *
 * in float32, input by input: what a row comes to depends neither on the number of rows nor on how
 * they are divided among threads.
 *
 * Packed: panels of 16 outputs, a byte for each output:
 *
 *   e4m3, int8: byte [panel, k, output]
 *   table:      byte [panel, k / 2, output], even inputs in the low half
 *
 * Scales [panel, group, 16], or float32 [panel, group] where the outputs of a panel share them. Zero
 * points int8 [panel, group, 16], or none; they are taken from the codes, which float32 does exactly,
 * before anything is multiplied: no large sums are left to cancel.
 */
#include "tiles.h"

enum { E4M3 = 0, TABLE = 1, INT = 2, ZEROS = 4 }; /* ZEROS: beside TABLE or INT */

#define PER_BYTE(kind) ((kind) & TABLE ? 2 : 1) /* inputs of a byte */

#define AHEAD 1024 /* bytes to fetch before they are needed */
#define MOST 8     /* rows of a tile that reads codes; above, codes become numbers first */

/* Of one panel and group. */
INLINE floats group_scales(const packed *w, int64_t place, const int kind) {
    floats found = w->shared ? splat_float(((const float *)w->scales)[place])
                             : load_numbers(w->scales, place * LANES, w->scale_type);
    return kind == E4M3 ? scaled(found, splat_float(256)) : found; /* from_e4m3 */
}

INLINE floats group_zeros(const packed *w, int64_t place, const int kind) {
    return kind & ZEROS ? from_int8((const int8_t *)w->zeros + place * LANES) : no_floats();
}

/* The numbers of the next inputs of a panel: two for TABLE, else one. */
INLINE void decode(const uint8_t *from, table values, floats zeros, floats *first, floats *second,
                   const int kind) {
    if (kind & TABLE) {
        const ints places = widened(from);
        *first = picked(values, places);
        *second = picked(values, shifted(places));
    } else {
        *first = kind & INT ? from_int8((const int8_t *)from) : from_e4m3(from);
    }
    if (kind & ZEROS) {
        *first = less(*first, zeros);
        if (kind & TABLE) *second = less(*second, zeros);
    }
}

/* R rows of x by S panels from `panel` on: out [R][S * 16]. */
INLINE void tile(const packed *w, const float *x, int64_t stride, int64_t panel, float *out,
                 const int R, const int S, const int kind) {
    const int64_t groups = w->inputs / w->group;
    const int64_t panel_bytes = w->inputs * LANES / PER_BYTE(kind);
    const uint8_t *from = w->codes + panel * panel_bytes;
    table values = kind & TABLE ? load_table(w->table) : no_floats();
    floats total[MOST][4];
    UNROLLED(r, R) UNROLLED(s, S) total[r][s] = no_floats();
    for (int64_t g = 0; g < groups; g++) {
        floats sum[MOST][4], zeros[4];
        UNROLLED(s, S) zeros[s] = group_zeros(w, (panel + s) * groups + g, kind);
        UNROLLED(r, R) UNROLLED(s, S) sum[r][s] = no_floats();
        for (int64_t k = 0; k < w->group; k += PER_BYTE(kind)) {
            floats first[4], second[4];
            UNROLLED(s, S) {
                const uint8_t *here = from + s * panel_bytes;
                _mm_prefetch((const char *)here + AHEAD, _MM_HINT_T0);
                decode(here, values, zeros[s], &first[s], &second[s], kind);
            }
            from += LANES;
            UNROLLED(r, R) {
                const float *at = x + r * stride + k;
                UNROLLED(s, S) {
                    sum[r][s] = plus_scaled(sum[r][s], first[s], at[0]);
                    if (kind & TABLE) sum[r][s] = plus_scaled(sum[r][s], second[s], at[1]);
                }
            }
        }
        x += w->group;
        UNROLLED(s, S) {
            const floats scales = group_scales(w, (panel + s) * groups + g, kind);
            UNROLLED(r, R) total[r][s] = plus_product(total[r][s], sum[r][s], scales);
        }
    }
    UNROLLED(r, R) UNROLLED(s, S) store_floats(out + (r * S + s) * LANES, total[r][s]);
}

#define TILE(R, S)                                                                          \
    do {                                                                                    \
        const int64_t start = panel * LANES, left = w->outputs - start;                     \
        tile(w, x + row * stride, stride, panel, found, R, S, kind);                        \
        for (int r = 0; r < (R); r++)                                                       \
            write_floats(y, (row + r) * w->outputs + start, found + r * (S) * LANES,        \
                         left < (S) * LANES ? left : (S) * LANES, type);                    \
    } while (0)

INLINE void rows_by_panels(const packed *w, const float *x, int64_t stride, int64_t row,
                           int64_t end, int64_t panel, const int S, const int kind, void *y,
                           int type) {
    float found[MOST * 4 * LANES];
#if WIDE_TILES
    for (; row + 8 <= end; row += 8) TILE(8, S);
#endif
    for (; row + 4 <= end; row += 4) TILE(4, S);
    for (; row + 2 <= end; row += 2) TILE(2, S);
    for (; row < end; row++) TILE(1, S);
}

INLINE void few_rows(const packed *w, const float *x, int64_t stride, int64_t row, int64_t end,
                     int64_t panel, int64_t last, const int kind, void *y, int type) {
    float found[4 * LANES];
    if (end - row == 1) /* so many sums under way hide what an addition takes */
        for (; panel + 4 <= last; panel += 4) TILE(1, 4);
#if WIDE_TILES
    for (; panel + 2 <= last; panel += 2)
        rows_by_panels(w, x, stride, row, end, panel, 2, kind, y, type);
#endif
    for (; panel < last; panel++)
        rows_by_panels(w, x, stride, row, end, panel, 1, kind, y, type);
}

/* From here on: codes of a few panels become numbers once for all rows, CHUNK inputs at a time,
 * which stay in a core's nearest cache. The same sums as above, in the same order. */
#define ROWS_AT_ONCE 128 /* whose activations stay in a core's cache while panels pass by */
#define CHUNK 128
#define BESIDE (WIDE_TILES ? 2 : 1) /* panels */
#define WIDTH (BESIDE * LANES)

/* The next `count` inputs of R rows: sums [R][WIDTH], which begin with these or go on. With scales
 * [WIDTH] they end a group: totals [R][WIDTH] get them. */
INLINE void add_chunk(const float *x, int64_t stride, const float *plain, int64_t count,
                      float *sums, int begins, float *totals, const float *scales, const int R) {
    floats sum[12][BESIDE];
    UNROLLED(r, R) UNROLLED(s, BESIDE)
            sum[r][s] = begins ? no_floats() : load_floats(sums + r * WIDTH + s * LANES);
    for (int64_t k = 0; k < count; k++) {
        floats value[BESIDE];
        UNROLLED(s, BESIDE) value[s] = load_floats(plain + k * WIDTH + s * LANES);
        UNROLLED(r, R) UNROLLED(s, BESIDE)
                sum[r][s] = plus_scaled(sum[r][s], value[s], x[r * stride + k]);
    }
    UNROLLED(r, R) UNROLLED(s, BESIDE) {
            const int64_t at = r * WIDTH + s * LANES;
            if (!scales) store_floats(sums + at, sum[r][s]);
            else store_floats(totals + at, plus_product(load_floats(totals + at), sum[r][s],
                                                        load_floats(scales + s * LANES)));
        }
}

/* Numbers of `count` inputs from k on, which lie in group g, but for their scales, to
 * out [count][WIDTH]. */
INLINE void decode_chunk(const packed *w, int64_t panel, int num, int64_t g, int64_t k,
                         int64_t count, float *out, const int kind) {
    const int64_t panel_bytes = w->inputs * LANES / PER_BYTE(kind), groups = w->inputs / w->group;
    const table values = kind & TABLE ? load_table(w->table) : no_floats();
    for (int s = 0; s < num; s++, out += LANES) {
        const uint8_t *from = w->codes + (panel + s) * panel_bytes + k / PER_BYTE(kind) * LANES;
        const floats zeros = group_zeros(w, (panel + s) * groups + g, kind);
        float *to = out;
        for (int64_t i = 0; i < count; i += PER_BYTE(kind), from += LANES, to += PER_BYTE(kind) * WIDTH) {
            floats first, second;
            _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T0);
            decode(from, values, zeros, &first, &second, kind);
            store_floats(to, first);
            if (kind & TABLE) store_floats(to + WIDTH, second);
        }
    }
}

#define ADD(R)                                                                        \
    for (; row + (R) <= rows; row += (R))                                             \
    add_chunk(x + row * stride, stride, plain, count, sums + row * WIDTH, begins,     \
              totals + row * WIDTH, scales, R)

/* The same for any number of rows. */
static void add_rows(const float *x, int64_t stride, int64_t rows, const float *plain, int64_t count,
                     float *sums, int begins, float *totals, const float *scales) {
    int64_t row = 0;
#if WIDE_TILES
    ADD(12);
    ADD(8);
#else
    ADD(6);
#endif
    ADD(4);
    ADD(2);
    ADD(1);
}

INLINE void many_rows(const packed *w, const float *x, int64_t stride, int64_t first_row,
                      int64_t rows, int64_t panel, int64_t last, const int kind, void *y,
                      int type) {
    const int64_t groups = w->inputs / w->group;
    float plain[CHUNK * WIDTH] = {0}, scales[WIDTH] = {0};
    float sums[ROWS_AT_ONCE * WIDTH], totals[ROWS_AT_ONCE * WIDTH];
    x += first_row * stride;
    for (; panel < last; panel += BESIDE) {
        const int num = last - panel < BESIDE ? 1 : BESIDE;
        memset(totals, 0, sizeof *totals * WIDTH * rows);
        for (int64_t g = 0; g < groups; g++) {
            const int64_t start = g * w->group, end = start + w->group;
            for (int s = 0; s < num; s++)
                store_floats(scales + s * LANES, group_scales(w, (panel + s) * groups + g, kind));
            for (int64_t k = start; k < end; k += CHUNK) {
                const int64_t count = end - k < CHUNK ? end - k : CHUNK;
                const int begins = k == start, ends = k + count == end;
                decode_chunk(w, panel, num, g, k, count, plain, kind);
                add_rows(x + k, stride, rows, plain, count, sums, begins, totals, ends ? scales : 0);
            }
        }
        const int64_t output = panel * LANES, left = w->outputs - output;
        for (int64_t row = 0; row < rows; row++)
            write_floats(y, (first_row + row) * w->outputs + output, totals + row * WIDTH,
                         left < num * LANES ? left : num * LANES, type);
    }
}

/* Some rows of activations by panels up to `last`, as fast as so many can be. */
INLINE void rows_of_kind(const packed *w, const float *x, int64_t stride, int64_t row, int64_t end,
                         int64_t panel, int64_t last, const int kind, void *y, int type) {
    if (end - row > MOST) many_rows(w, x, stride, row, end - row, panel, last, kind, y, type);
    else few_rows(w, x, stride, row, end, panel, last, kind, y, type);
}

#define OF_KIND(KIND)                                                                       \
    static void rows_##KIND(const packed *w, const float *x, int64_t stride, int64_t row,    \
                            int64_t end, int64_t panel, int64_t last, void *y, int type) {  \
        rows_of_kind(w, x, stride, row, end, panel, last, KIND, y, type);                   \
    }
enum { TABLE_ZEROS = TABLE | ZEROS, INT_ZEROS = INT | ZEROS };
OF_KIND(E4M3)
OF_KIND(TABLE)
OF_KIND(TABLE_ZEROS)
OF_KIND(INT)
OF_KIND(INT_ZEROS)

typedef void some_rows(const packed *, const float *, int64_t, int64_t, int64_t, int64_t, int64_t,
                       void *, int);
static some_rows *const of_kind[] = {
    [E4M3] = rows_E4M3, [TABLE] = rows_TABLE, [TABLE_ZEROS] = rows_TABLE_ZEROS,
    [INT] = rows_INT,   [INT_ZEROS] = rows_INT_ZEROS,
};

#if TILES
INLINE void as_operands(const packed *w, int64_t panel, element *to, const int kind) {
    const int64_t groups = w->inputs / w->group;
    const uint8_t *from = w->codes + panel * w->inputs * LANES / PER_BYTE(kind);
    const table values = kind & TABLE ? load_table(w->table) : no_floats();
    for (int64_t g = 0; g < groups; g++) {
        const floats zeros = group_zeros(w, panel * groups + g, kind);
        const floats scales = group_scales(w, panel * groups + g, kind);
        for (int64_t k = 0; k < w->group; k += 2, from += 2 * LANES / PER_BYTE(kind), to += 32) {
            floats first, second, none;
            _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T0);
            decode(from, values, zeros, &first, &second, kind);
            if (!(kind & TABLE)) decode(from + LANES, values, zeros, &second, &none, kind);
            store_inputs(to, scaled(first, scales), scaled(second, scales));
        }
    }
}

void numbers_as_operands(const packed *w, int64_t panel, element *to) {
    if (w->kind == E4M3) as_operands(w, panel, to, E4M3);
    else if (w->kind == TABLE) as_operands(w, panel, to, TABLE);
    else if (w->kind == TABLE_ZEROS) as_operands(w, panel, to, TABLE_ZEROS);
    else if (w->kind == INT) as_operands(w, panel, to, INT);
    else as_operands(w, panel, to, INT_ZEROS);
}
#endif

#define BLOCK 512 /* rows that are widened at a time */

/* y [rows, outputs] = x [rows, inputs] @ w^T, both of number format `type`; scratch float32 [rows
 * or BLOCK, inputs + LANES]: rows a power of two apart would all lie in the same few lines of a
 * cache. */
void native_dequantized_product(const packed *w, const void *x, void *y, int64_t rows, int32_t type,
                            float *scratch, int32_t threads) {
    const int64_t count = (w->outputs + LANES - 1) / LANES, stride = w->inputs + LANES;
#pragma omp parallel num_threads(threads)
    for (int64_t start = 0; start < rows; start += BLOCK) {
        const int64_t here = rows - start < BLOCK ? rows - start : BLOCK;
        void *to = (char *)y + start * w->outputs * (type == F32 ? 4 : 2);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < here; row++)
            read_floats(scratch + row * stride, x, (start + row) * w->inputs, w->inputs, type);
#pragma omp for schedule(static)
        for (int32_t share = 0; share < threads; share++) {
            const int64_t first = count * share / threads, last = count * (share + 1) / threads;
            for (int64_t row = 0; row < here; row += ROWS_AT_ONCE) {
                const int64_t end = row + ROWS_AT_ONCE < here ? row + ROWS_AT_ONCE : here;
                of_kind[w->kind](w, scratch, stride, row, end, first, last, to, type);
            }
        }
    }
}
