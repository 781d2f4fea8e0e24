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
    int64_t inputs, group;       /* group: inputs that share a scale */
    int64_t stride;              /* between rows: not the inputs, see APART */
    int64_t step;                /* 0, or of tiles [16 rows, step] in the order [row, input] */
    int8_t *high, *low;          /* [rows, stride], or tiles; low: with two parts, where has_low */
    float *scales;               /* [rows, groups] */
    int32_t *sums;               /* [rows, groups]: of q */
    uint8_t *has_low;            /* [rows, groups] */
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
    const int64_t place = row * (to->inputs / to->group) + g, start = place * to->group;
    ints sizes = no_ints(); /* as bits, in whose order NaN is above infinity */
    floats total = no_floats();
    for (int64_t i = 0; i < to->group; i += LANES) {
        const ints bits = size_bits(numbers_at(x, start + i, to->group - i, type));
        sizes = larger_ints(sizes, bits);
        total = plus_scaled(total, from_bits(bits), 1.0f);
    }
    float largest_sizes[LANES], totals[LANES], size = 0;
    store_ints((int32_t *)largest_sizes, sizes);
    store_floats(totals, total);
    for (int i = 0; i < LANES; i++) size += totals[i];
    float largest = largest_of(largest_sizes, LANES);
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
        if (parts == 2) UNROLLED(r, R) has_low |= x->has_low[(row + r) * groups + g];
        if (has_low) { /* of the other rows there may be anything */
            ints low[4][4];
            UNROLLED(r, R) UNROLLED(s, S) low[r][s] = no_ints();
            add_products(low, codes, panel_bytes, ahead, x->low + start, x->stride, w->group, R, S,
                         bits, 0);
            UNROLLED(r, R) if (x->has_low[(row + r) * groups + g])
                UNROLLED(s, S) sums[r][s] = joined(sums[r][s], low[r][s]);
        }
        UNROLLED(s, S) {
            const int64_t place = ((panel + s) * groups + g) * LANES;
            const floats scales = load_numbers(w->scales, place, w->scale_type);
            const ints zeros = w->zeros ? widened((const uint8_t *)w->zeros + place)
                                        : splat(bits == 4 ? 8 : 128);
            UNROLLED(r, R) {
                const int64_t at = (row + r) * groups + g;
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

#define FEW_ROWS 12 /* below, vectors are as fast as a tile of 16 */
#define BAND 256    /* rows at a time */
#define NEAR 512    /* inputs at a time, whose codes of two panels stay in the first cache */
#define BOTH 1024   /* sums of 32 rows by two panels */

static int fits_tiles(const packed *w, int64_t rows) {
    return tiles_made_of == REGISTERS && rows >= FEW_ROWS && w->group % 32 == 0;
}

/* Products of 16 * R rows of x, the second 16 of which are `below` the first, by the codes of S panels,
 * added to sums [R][S][16][LANES] or, with `first`, in their place. Codes of 4 bits are signed. */
INLINE void dot_tiles(const int8_t *x, int64_t below, const uint8_t *codes, int64_t apart,
                      int64_t inputs, int64_t step, int first, int32_t *sums, const int R,
                      const int S, const int bits) {
    const operand left = {x, below, step, 16 * step, 0}, right = {codes, apart, 64, step * LANES, 0};
    const tile_sums to = {sums, 2048, 1024, 64};
    multiply_tiles(left, right, inputs / step, first, to, NULL, R, S,
                   bits == 4 ? SIGNED_CODES : UNSIGNED_CODES);
}

/* The products of group g, scaled, to the totals [rows][S][LANES] of 16 * R rows from `row` on. */
INLINE void add_group(const packed *w, const activations *x, int64_t row, int64_t panel, int64_t g,
                      const int32_t *upper, const int32_t *lower, float *totals, const int R,
                      const int S, const int bits, const int parts) {
    const int64_t groups = w->inputs / w->group;
    floats scales[2];
    ints zeros[2];
    UNROLLED(s, S) {
        const int64_t place = ((panel + s) * groups + g) * LANES;
        scales[s] = load_numbers(w->scales, place, w->scale_type);
        zeros[s] = w->zeros ? widened((const uint8_t *)w->zeros + place) : splat(128);
    }
    for (int64_t r = 0; r < 16 * R; r++) {
        const int64_t at = (row + r) * groups + g, from = r / 16 * 512 + r % 16 * LANES;
        UNROLLED(s, S) {
            ints sum = load_ints(upper + from + s * 256);
            if (parts == 2 && x->has_low[at]) sum = joined(sum, load_ints(lower + from + s * 256));
            if (bits == 8) sum = minus(sum, times(zeros[s], splat(x->sums[at])));
            float *total = totals + (r * S + s) * LANES;
            const floats found = scaled(as_floats(sum), scales[s]);
            store_floats(total, plus_scaled(load_floats(total), found, x->scales[at]));
        }
    }
}

INLINE int any_low(const activations *x, int64_t row, int64_t end, int64_t g) {
    const int64_t groups = x->inputs / x->group;
    int found = 0;
    for (; row < end; row++) found |= x->has_low[row * groups + g];
    return found;
}

/* The products of weights with one group, scaled, to y: of `rows` rows from `row` on. */
INLINE void keep_sums(const packed *w, const activations *x, int64_t row, int64_t rows,
                      int64_t panel, const int32_t *upper, void *y, const int S, int type) {
    for (int64_t r = 0; r < rows; r++)
        UNROLLED(s, S) {
            const int64_t start = (panel + s) * LANES, from = r / 16 * 512 + r % 16 * LANES;
            const floats scales = load_numbers(w->scales, start, w->scale_type);
            const ints zeros = w->zeros ? widened((const uint8_t *)w->zeros + start) : splat(128);
            const ints whole = times(zeros, splat(x->sums[row + r]));
            const ints sum = minus(load_ints(upper + from + s * 256), whole);
            const floats found = scaled(as_floats(sum), scales);
            write_lanes(y, (row + r) * w->outputs + start, w->outputs - start,
                        plus_scaled(no_floats(), found, x->scales[row + r]), type);
        }
}

/* Codes of 4 bits of `inputs` inputs less their zero points, as those of 8 bits lie. */
INLINE void widen_codes(const uint8_t *from, int64_t inputs, const packed *w, int64_t place,
                        uint8_t *to) {
    const ints zeros = w->zeros ? widened((const uint8_t *)w->zeros + place) : splat(8);
    const bytes each = times(zeros, splat(0x01010101));
    for (int64_t k = 0; k < inputs; k += 8, from += 64, to += 128) {
        const bytes both = load_bytes(from);
        store_bytes(to, less_bytes(low_nibbles(both), each));
        store_bytes(to + 64, less_bytes(high_nibbles(both), each));
    }
}

/* Rows from `row` to `end` by S panels. A group's codes are taken NEAR inputs at a time. */
INLINE void band_by_tiles(const packed *w, const activations *x, int64_t row, int64_t end,
                          int64_t panel, const int S, const int bits, const int parts, void *y,
                          int type) {
    _Alignas(64) float totals[BAND * 2 * LANES];
    _Alignas(64) int32_t upper[BAND / 32 * BOTH], lower[parts == 2 ? BAND / 32 * BOTH : 1];
    _Alignas(64) uint8_t wide[2][bits == 4 ? NEAR * LANES : 1];
    const int64_t groups = w->inputs / w->group, panel_bytes = w->inputs * bits / 8 * LANES;
    const int64_t step = x->step, below = 16 * x->inputs;
    if (parts == 2 || groups > 1) memset(totals, 0, sizeof totals);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t k = 0; k < w->group; k += NEAR) {
            const int64_t inputs = least(NEAR, w->group - k), input = g * w->group + k;
            const uint8_t *codes = w->codes + panel * panel_bytes + input * bits / 8 * LANES;
            int64_t apart = panel_bytes;
            if (bits == 4) {
                UNROLLED(s, S)
                    widen_codes(codes + s * panel_bytes, inputs, w,
                                ((panel + s) * groups + g) * LANES, wide[s]);
                codes = wide[0], apart = sizeof *wide;
            }
            for (int64_t r = row; r < end; r += 32) {
                const int64_t place = code_place(x, r, input);
                /* one after the other in the same place, if nothing is to be added later */
                const int64_t at = w->group > NEAR ? (r - row) / 32 * BOTH : 0;
#define BY_TILES(R)                                                                               \
    do {                                                                                          \
        dot_tiles(x->high + place, below, codes, apart, inputs, step, k == 0, upper + at, R,  \
                  S, bits);                                                                       \
        if (parts == 2 && any_low(x, r, least(r + 32, end), g))                                   \
            dot_tiles(x->low + place, below, codes, apart, inputs, step, k == 0, lower + at,  \
                      R, S, bits);                                                                \
        if (parts == 1 && groups == 1 && k + inputs == w->group)                                  \
            keep_sums(w, x, r, least(16 * R, end - r), panel, upper + at, y, S, type);             \
        else if (k + inputs == w->group)                                                          \
            add_group(w, x, r, panel, g, upper + at, lower + (parts == 2 ? at : 0),               \
                      totals + (r - row) * S * LANES, R, S, bits, parts);                         \
    } while (0)
                if (end - r > 16) BY_TILES(2);
                else BY_TILES(1);
            }
        }
    if (parts == 2 || groups > 1)
        for (int64_t r = 0; r < end - row; r++)
            UNROLLED(s, S) {
                const int64_t start = (panel + s) * LANES;
                write_lanes(y, (row + r) * w->outputs + start, w->outputs - start,
                            load_floats(totals + (r * S + s) * LANES), type);
            }
}

INLINE void by_tiles(const packed *w, const activations *x, int64_t row, int64_t end,
                     int64_t panel, int64_t last, const int bits, const int parts, void *y,
                     int type) {
    for (; panel + 2 <= last; panel += 2)
        band_by_tiles(w, x, row, end, panel, 2, bits, parts, y, type);
    if (panel < last) band_by_tiles(w, x, row, end, panel, 1, bits, parts, y, type);
}

/* All rows by the panels from `first` to `last`. */
static void tiles_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                     int64_t last, void *y, int type) {
    const tile_shapes before = begin_tiles(x->step);
    for (int64_t row = 0; row < rows; row += BAND) {
        const int64_t end = least(row + BAND, rows);
        if (w->bits == 4) by_tiles(w, x, row, end, first, last, 4, 2, y, type);
        else if (w->parts == 2) by_tiles(w, x, row, end, first, last, 8, 2, y, type);
        else by_tiles(w, x, row, end, first, last, 8, 1, y, type);
    }
    end_tiles(&before);
}

#else
INLINE int fits_tiles(const packed *w, int64_t rows) { return 0; }
INLINE void tiles_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                     int64_t last, void *y, int type) {}
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
 * of 16 rows. */
void native_integer_product(const packed *w, const void *x, void *y, int64_t rows, int32_t type,
                    void *scratch, int32_t threads) {
    const int64_t groups = w->inputs / w->group;
    activations a = {.inputs = w->inputs, .group = w->group, .stride = w->inputs + APART};
    const int64_t whole = (rows + 15) / 16 * 16, size = whole * a.stride;
    if (fits_tiles(w, rows)) a.step = w->group % 64 ? 32 : 64;
    a.scales = scratch;
    a.sums = (int32_t *)(a.scales + whole * groups);
    a.high = (int8_t *)(a.sums + whole * groups);
    a.low = w->parts == 2 ? a.high + size : 0;
    a.has_low = (uint8_t *)a.high + size * w->parts;
    const int64_t count = (w->outputs + LANES - 1) / LANES;
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
            if (a.step) tiles_of(w, &a, rows, first, last, y, type);
            else panels_of(w, &a, rows, first, last, y, type);
        }
    }
}
