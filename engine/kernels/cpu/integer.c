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
#include <math.h>

#include "numbers.h"
#include "tiles.h"

/* Activations as integers.
 *
 * A row, or with two parts a group of its inputs, is rounded to 8 bits, its largest to 127, half
 * up. For the codes of a weight of 4 bits that is fine enough (llama.cpp rounds activations to 8
 * bits in groups of 32 as well), but where a number stands out of its group: with two parts that is
 * rounded to q = 256 * high + low, its largest to 32512: finer than the 8 bits of bfloat16 or the
 * 11 of float16 that it came from, but for numbers far below the largest. That depends on the group
 * alone, not on the rows beside it.
 */
typedef struct {
    int64_t inputs, group, groups; /* group: inputs that share a scale */
    int64_t rows;                /* filled up to whole tiles */
    int64_t stride;              /* between rows: not the inputs, see APART */
    int64_t step;                /* 0, or of tiles [16 rows, step] in the order [row, input] */
    int8_t *high, *low;          /* [rows, stride], or tiles; low: with two parts, where has_low */
    float *scales;               /* [groups, rows] */
    int32_t *sums;               /* [groups, rows]: of q */
    uint8_t *has_low;            /* [groups, rows] */
} activations;

#define STANDS_OUT 16 /* the largest, times the mean magnitude of its group */

/* Rows a power of two apart would all lie in the same few lines of a cache. */
#define APART 64

/* Where the code of a row's input lies; those up to the end of its step follow. */
INLINE int64_t code_place(const activations *to, int64_t row, int64_t input) {
    const int64_t step = to->step, within = input & (step - 1);
    if (!step) return row * to->stride + input;
    return row / 16 * 16 * to->inputs + (input - within) * 16 + row % 16 * step + within;
}

/* LANES numbers of x from `place` on, or the `left` that there are and zeros. */
INLINE floats numbers_at(const void *x, int64_t place, int64_t left, int type) {
    if (left >= LANES) return load_numbers(x, place, type);
    float some[LANES] = {0};
    read_floats(some, x, place, left, type);
    return load_floats(some);
}

/* Group g of a row of x, whose type is `type`. A group of zeros stays zero; where a number is not
 * finite the scale is not, and so the result. What a last vector has beyond the group is written
 * where the next one, or APART, is. */
static void round_group(const activations *to, int64_t row, int64_t g, const void *x, int type) {
    const int64_t place = g * to->rows + row, start = row * to->inputs + g * to->group;
    ints sizes = no_ints(); /* as bits, in whose order NaN is above infinity */
    floats total = no_floats();
    for (int64_t i = 0; i < to->group; i += LANES) {
        const ints bits = size_bits(numbers_at(x, start + i, to->group - i, type));
        sizes = larger_ints(sizes, bits);
        total = plus_scaled(total, from_bits(bits), 1.0f);
    }
    float largest_sizes[LANES];
    store_ints((int32_t *)largest_sizes, sizes);
    float largest = largest_of(largest_sizes, LANES);
    const float size = _mm_cvtss_f32(sums_of_four(total, total, total, total));
    const int has_low = to->low && size * STANDS_OUT < largest * (float)to->group;
    largest = largest < 1e-30f ? 1e-30f : largest;
    const float limit = has_low ? 32512.0f : 127.0f;
    const int32_t middle = has_low ? 1 << 15 : 1 << 7; /* truncated above it: half up */
    const floats steps = splat_float(limit / largest);
    ints sum = no_ints();
    for (int64_t i = 0; i < to->group; i += LANES) {
        const floats exact = scaled(numbers_at(x, start + i, to->group - i, type), steps);
        const floats above = plus_scaled(splat_float((float)middle + 0.5f), exact, 1.0f);
        const ints q = minus(truncated(above), splat(middle));
        const int64_t at = code_place(to, row, g * to->group + i);
        sum = plus(sum, q);
        if (has_low) {
            const ints high = shifted_right(plus(q, splat(128)));
            store_codes(to->high + at, high);
            store_codes(to->low + at, minus(q, joined(high, no_ints())));
        } else {
            store_codes(to->high + at, q);
        }
    }
    int32_t sums[LANES];
    store_ints(sums, sum);
    to->sums[place] = 0;
    for (int i = 0; i < LANES; i++) to->sums[place] += sums[i];
    to->scales[place] = largest / limit;
    to->has_low[place] = (uint8_t)has_low;
}

static void round_row(const activations *to, int64_t row, const void *x, int type) {
    for (int64_t g = 0; g < to->inputs / to->group; g++) round_group(to, row, g, x, type);
}

/* Prefetch distance within a panel, in bytes. Into L2: a core has few L1 misses outstanding. */
#define AHEAD 2048

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

/* R rows from `row` on by S panels from `panel` on: out [R][S * 16]. fetches: these rows are
 * the first to read the codes. */
INLINE void tile(const packed *w, const activations *x, int64_t row, int64_t panel, float *out,
                 const int R, const int S, const int bits, const int parts, const int fetches) {
    const int64_t groups = w->inputs / w->group, panel_bytes = w->inputs * bits / 8 * LANES;
    floats total[4][4];
    UNROLLED(r, R) UNROLLED(s, S) total[r][s] = no_floats();
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *codes = w->codes + panel * panel_bytes + g * w->group * bits / 8 * LANES;
        const int64_t start = row * x->stride + g * w->group;
        const int64_t ahead = distance(w, g, S, bits);
        ints sums[4][4];
        UNROLLED(r, R) UNROLLED(s, S) sums[r][s] = no_ints();
        add_products(sums, codes, panel_bytes, ahead, x->high + start, x->stride, w->group, R, S,
                     bits, fetches);
        int has_low = 0;
        if (parts == 2) UNROLLED(r, R) has_low |= x->has_low[g * x->rows + row + r];
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
                                        : splat(bits == 4 ? 8 : 128);
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

#define TILE(R, S)                                                            \
    do {                                                                      \
        if (row == first) tile(w, x, row, panel, found, R, S, bits, parts, 1); \
        else tile(w, x, row, panel, found, R, S, bits, parts, 0);             \
        keep(w, row, panel, found, R, S, y, type);                            \
    } while (0)

/* Rows from `row` to `end` by S panels, several rows at a time. */
INLINE void rows_by_panels(const packed *w, const activations *x, int64_t row, int64_t end,
                           int64_t panel, const int S, const int bits, const int parts, void *y,
                           int type) {
    float found[4 * 4 * LANES];
    const int64_t first = row;
#if WIDE_TILES
    for (; row + 4 <= end; row += 4) TILE(4, S);
#endif
    for (; row + 2 <= end; row += 2) TILE(2, S);
    for (; row < end; row++) TILE(1, S);
}

/* Panels from `panel` to `last`. A single row reads four panels at once, that enough sums are under
 * way to hide what an addition takes. */
INLINE void panels(const packed *w, const activations *x, int64_t row, int64_t end, int64_t panel,
                   int64_t last, const int bits, const int parts, void *y, int type) {
#if WIDE_TILES
    if (end - row == 1) {
        float found[4 * 4 * LANES];
        const int64_t first = row;
        for (; panel + 4 <= last; panel += 4) TILE(1, 4);
    }
    for (; panel + 4 <= last; panel += 4)
        rows_by_panels(w, x, row, end, panel, 4, bits, parts, y, type);
    for (; panel + 2 <= last; panel += 2)
        rows_by_panels(w, x, row, end, panel, 2, bits, parts, y, type);
#endif
    for (; panel < last; panel++) rows_by_panels(w, x, row, end, panel, 1, bits, parts, y, type);
}

#if AMX

#define FEW_ROWS 12        /* below, vectors are as fast as a tile of 16 */
#define NEAR 1024          /* inputs at a time, of which 32 rows stay in the first cache */
#define WIDEST 32          /* panels at a time, or as many as ... */
#define CHUNK_BYTES 786432 /* ... whose codes stay in the second cache; integer.py */

#define BETWEEN (WIDEST * LANES + LANES) /* totals from row to row: see APART */

/* What 32 rows by the panels of a chunk come to. */
typedef struct {
    float totals[32][BETWEEN];
    int32_t upper[WIDEST / 2][32][2 * LANES]; /* of two panels */
    int32_t lower[WIDEST / 2][32][2 * LANES];
} results;

static int fits_tiles(const packed *w, int64_t rows) {
    return tiles_made_of == REGISTERS && rows >= FEW_ROWS && w->group % 32 == 0;
}

/* Of 16 * R rows. */
INLINE int any_low(const activations *x, int64_t row, int64_t g, const int R) {
    const uint8_t *from = x->has_low + g * x->rows + row;
    uint8_t found = 0;
    for (int r = 0; r < 16 * R; r++) found |= from[r];
    return found;
}

/* Sums of a group, of which the rows from `row` to before `end` are still to be scaled and added to the
 * totals, as many `at_once` as that takes no longer than a product of tiles. */
typedef struct {
    const int32_t (*upper)[2 * LANES], (*lower)[2 * LANES];
    float (*totals)[BETWEEN];
    const float *x_scales;
    const int32_t *x_sums;
    const uint8_t *low; /* NULL: no row has any */
    floats scales[2];
    ints zeros[2];
    int64_t row, end, at_once;
} scaling;

INLINE void scale_row(const scaling *of, int64_t r, const int S, const int bits, const int is_low) {
    UNROLLED(s, S) {
        float *total = of->totals[r] + s * LANES;
        ints sum = load_ints(of->upper[r] + s * LANES);
        if (is_low && of->low[r]) sum = joined(sum, load_ints(of->lower[r] + s * LANES));
        if (bits == 8) sum = minus(sum, times(of->zeros[s], splat(of->x_sums[r])));
        const floats found = scaled(as_floats(sum), of->scales[s]);
        store_floats(total, plus_scaled(load_floats(total), found, of->x_scales[r]));
    }
}

INLINE void scale_some(scaling *of, const int S, const int bits) {
    const int64_t end = least(of->row + of->at_once, of->end);
    for (; of->row < end; of->row++) scale_row(of, of->row, S, bits, 0);
}

INLINE void scale_all(scaling *of, const int S, const int bits) {
    for (; of->low && of->row < of->end; of->row++) scale_row(of, of->row, S, bits, 1);
    for (; of->row < of->end; of->row++) scale_row(of, of->row, S, bits, 0);
}

INLINE void scale_14(void *of, int64_t step, int n) { scale_some(of, 1, 4); }
INLINE void scale_24(void *of, int64_t step, int n) { scale_some(of, 2, 4); }
INLINE void scale_18(void *of, int64_t step, int n) { scale_some(of, 1, 8); }
INLINE void scale_28(void *of, int64_t step, int n) { scale_some(of, 2, 8); }

/* Products of 16 * R rows of x by the codes of S panels, added to sums or, with `first`, in their
 * place. Codes of 4 bits are signed. */
INLINE void dot_tiles(const activations *x, const int8_t *from, const uint8_t *codes, int64_t inputs,
                      int first, void *sums, meanwhile also, void *with, const int R, const int S,
                      const int bits) {
    const operand left = {from, 16 * x->inputs, x->step, 16 * x->step, 0};
    const operand right = {codes, x->inputs * LANES, 64, x->step * LANES, 1};
    const tile_sums to = {sums, 16 * 128, 64, 128};
    multiply_tiles(left, right, x->step == 64 ? inputs / 64 : inputs / 32, first, to, also, with, R, S,
                   bits == 4 ? SIGNED_CODES : UNSIGNED_CODES);
}

/* Inputs k to `end`, of group g or of it and the next ones, of 16 * R rows by S panels, the first of
 * which is `here` of the chunk's. A group's sums are scaled while the next one's are under way. */
INLINE void dot_groups(const packed *w, const activations *x, int64_t row, int64_t panel,
                       int64_t here, int64_t k, int64_t end, int64_t g, const uint8_t *codes,
                       results *to, meanwhile also, const int R, const int S, const int bits,
                       const int parts) {
    scaling last = {.row = 0, .end = 0};
    float(*totals)[BETWEEN] = (float(*)[BETWEEN])(to->totals[0] + here * LANES);
    int first = k == g * w->group;
    for (int r = 0; k == 0 && r < 16 * R; r++)
        UNROLLED(s, S) store_floats(totals[r] + s * LANES, no_floats());
    for (; k < end; first = 1) {
        const int64_t until = least((g + 1) * w->group, end), place = code_place(x, row, k);
        const int64_t at = w->group > NEAR ? here / 2 : g % 2, group_at = g * x->rows + row;
        const int has_low = parts == 2 && any_low(x, row, g, R);
        if (last.low) scale_all(&last, S, bits);
        last.at_once = (16 * x->step - 1) / (S * (until - k)) + 1;
        dot_tiles(x, x->high + place, codes + k * LANES, until - k, first, to->upper[at], also, &last, R,
                  S, bits);
        if (has_low)
            dot_tiles(x, x->low + place, codes + k * LANES, until - k, first, to->lower[at], nothing,
                      NULL, R, S, bits);
        scale_all(&last, S, bits);
        k = until;
        if (k < (g + 1) * w->group) return;
        last = (scaling){.upper = to->upper[at], .lower = to->lower[at], .totals = totals,
                         .x_scales = x->scales + group_at, .x_sums = x->sums + group_at,
                         .low = has_low ? x->has_low + group_at : NULL, .end = 16 * R};
        UNROLLED(s, S) {
            const int64_t of = ((panel + s) * x->groups + g) * LANES;
            last.scales[s] = load_numbers(w->scales, of, w->scale_type);
            last.zeros[s] = w->zeros ? widened((const uint8_t *)w->zeros + of) : splat(128);
        }
        g++;
    }
    scale_all(&last, S, bits);
}

/* 16 * R rows from `row` on by `count` panels, whose codes of 8 bits are `codes`. */
INLINE void block(const packed *w, const activations *x, int64_t row, int64_t panel, int64_t count,
                  const uint8_t *codes, results *to, const int R, const int bits, const int parts) {
    const int64_t group = w->group, several = group < NEAR ? NEAR / group : 1;
    for (int64_t k = 0, end, g = 0; k < w->inputs; k = end, g = k / group) {
        end = group > NEAR ? least(k + NEAR, (g + 1) * group) : least((g + several) * group, w->inputs);
        for (int64_t n = 0; n < count; n += 2) {
            const uint8_t *from = codes + n * w->inputs * LANES;
            if (count - n > 1)
                dot_groups(w, x, row, panel + n, n, k, end, g, from, to,
                           bits == 4 ? scale_24 : scale_28, R, 2, bits, parts);
            else
                dot_groups(w, x, row, panel + n, n, k, end, g, from, to,
                           bits == 4 ? scale_14 : scale_18, R, 1, bits, parts);
        }
    }
}

/* A panel's codes of 4 bits less their zero points, as those of 8 bits lie. */
static void widen_codes(const packed *w, int64_t panel, uint8_t *to) {
    const int64_t groups = w->inputs / w->group;
    const uint8_t *from = w->codes + panel * w->inputs * LANES / 2;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t place = (panel * groups + g) * LANES;
        const ints zeros = w->zeros ? widened((const uint8_t *)w->zeros + place) : splat(8);
        const bytes each = times(zeros, splat(0x01010101));
        for (int64_t k = 0; k < w->group; k += 8, from += 64, to += 128) {
            const bytes both = load_bytes(from);
            _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
            store_bytes(to, less_bytes(low_nibbles(both), each));
            store_bytes(to + 64, less_bytes(high_nibbles(both), each));
        }
    }
}

/* All rows by `count` panels. */
INLINE void chunk(const packed *w, const activations *x, int64_t rows, int64_t panel, int64_t count,
                  uint8_t *near, void *y, int type, const int bits, const int parts) {
    const uint8_t *codes = bits == 4 ? near : w->codes + panel * w->inputs * LANES;
    results found;
    /* of 4 bits: widened once for all rows */
    for (int64_t n = 0; bits == 4 && n < count; n++)
        widen_codes(w, panel + n, near + n * w->inputs * LANES);
    for (int64_t row = 0; row < rows; row += 32) {
        const int64_t here = least(32, rows - row);
        if (here > 16) block(w, x, row, panel, count, codes, &found, 2, bits, parts);
        else block(w, x, row, panel, count, codes, &found, 1, bits, parts);
        for (int64_t r = 0; r < here; r++)
            for (int64_t n = 0; n < count; n++) {
                const int64_t start = (panel + n) * LANES;
                write_lanes(y, (row + r) * w->outputs + start, w->outputs - start,
                            load_floats(found.totals[r] + n * LANES), type);
            }
    }
}

/* All rows by the panels from `first` to `last`, a thread's `share`. */
static void tiles_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                     int64_t last, int share, void *y, int type) {
    const uintptr_t end = (uintptr_t)(x->has_low + x->rows * x->groups + 63) / 64 * 64;
    uint8_t *near = (uint8_t *)end + share * most(CHUNK_BYTES, 2 * LANES * w->inputs);
    const tile_shapes before = begin_tiles(x->step);
    const int64_t fitting = rows > 32 ? CHUNK_BYTES / (w->inputs * LANES) / 2 * 2 : 2;
    const int64_t widest = most(2, least(WIDEST, fitting));
    for (int64_t panel = first; panel < last; panel += widest) {
        const int64_t count = least(widest, last - panel);
        if (w->bits == 4) chunk(w, x, rows, panel, count, near, y, type, 4, 2);
        else if (w->parts == 2) chunk(w, x, rows, panel, count, near, y, type, 8, 2);
        else chunk(w, x, rows, panel, count, near, y, type, 8, 1);
    }
    end_tiles(&before);
}

#else
INLINE int fits_tiles(const packed *w, int64_t rows) { return 0; }
INLINE void tiles_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                     int64_t last, int share, void *y, int type) {}
#endif

#define ROWS_AT_ONCE 128 /* whose activations stay in a core's cache while panels pass by */

/* All rows by the panels from `first` to `last`. */
static void panels_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                      int64_t last, void *y, int type) {
    for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
        const int64_t end = least(row + ROWS_AT_ONCE, rows);
        if (w->bits == 4) panels(w, x, row, end, first, last, 4, 2, y, type);
        else if (w->parts == 2) panels(w, x, row, end, first, last, 8, 2, y, type);
        else panels(w, x, row, end, first, last, 8, 1, y, type);
    }
}

/* y [rows, outputs] = x [rows, inputs] @ w^T, both of number format `type`; scratch: of whole tiles
 * of 16 rows, and with AMX and 4 bits, from the next line on, of CHUNK_BYTES or two panels for each
 * thread. */
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
    if (a.step && w->parts == 2)
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
            if (a.step) tiles_of(w, &a, rows, first, last, share, y, type);
            else panels_of(w, &a, rows, first, last, y, type);
        }
    }
}
