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

/* Activations as integers.
 *
 * With two parts a group of inputs is rounded to 16 bits, q = 256 * high + low, its largest to
 * 32512: finer than the 8 bits of bfloat16 or the 11 of float16 that it came from, but for numbers
 * far below the largest of their group. With one part a row is rounded to 8 bits, its largest to
 * 127, half up.
 */
typedef struct {
    int64_t inputs, group;       /* group: inputs that share a scale */
    int64_t stride;              /* between rows: not the inputs, see APART */
    int8_t *high, *low;          /* [rows, stride]; low is NULL with one part */
    float *scales;               /* [rows, groups] */
    int32_t *sums;               /* [rows, groups]: of q */
} activations;

/* Rows a power of two apart would all lie in the same few lines of a cache. */
#define APART 64

#define PIECE 512 /* inputs that are widened at a time */

/* Row `row` of x, whose type is `type`. A row of zeros stays zero; where a number is not finite the
 * scale is not, and so the result. */
static void round_row(const activations *to, int64_t row, const void *x, int type) {
    float wide[PIECE];
    const int64_t groups = to->inputs / to->group;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t start = row * to->inputs + g * to->group;
        float largest = 0;
        for (int64_t done = 0; done < to->group; done += PIECE) {
            int64_t count = to->group - done < PIECE ? to->group - done : PIECE;
            read_floats(wide, x, start + done, count, type);
            float found = largest_of(wide, count);
            largest = found > largest || found != found ? found : largest;
            if (largest != largest) break;
        }
        largest = largest < 1e-30f ? 1e-30f : largest;
        const float limit = to->low ? 32512.0f : 127.0f, steps = limit / largest;
        int32_t sum = 0;
        for (int64_t done = 0; done < to->group; done += PIECE) {
            int64_t count = to->group - done < PIECE ? to->group - done : PIECE;
            read_floats(wide, x, start + done, count, type);
            const int64_t place = row * to->stride + g * to->group + done;
            int8_t *high = to->high + place;
            if (to->low) {
                int8_t *low = to->low + place;
                for (int64_t i = 0; i < count; i++) {
                    int32_t q = (int32_t)nearbyintf(wide[i] * steps);
                    int32_t upper = (q + 128) >> 8;
                    high[i] = (int8_t)upper;
                    low[i] = (int8_t)(q - upper * 256);
                    sum += q;
                }
            } else {
                for (int64_t i = 0; i < count; i++) {
                    int32_t q = (int32_t)(wide[i] * steps + 128.5f) - 128;
                    high[i] = (int8_t)q;
                    sum += q;
                }
            }
        }
        to->scales[row * groups + g] = largest / limit;
        to->sums[row * groups + g] = sum;
    }
}

#define AHEAD 1024 /* bytes to fetch before they are needed */

/* R rows from `row` on by S panels from `panel` on: out [R][S * 16]. */
INLINE void tile(const packed *w, const activations *x, int64_t row, int64_t panel, float *out,
                 const int R, const int S, const int bits, const int parts) {
    const int64_t groups = w->inputs / w->group, per_vector = bits == 4 ? 8 : 4;
    const int64_t panel_bytes = w->inputs / per_vector * 64;
    const uint8_t *codes = w->codes + panel * panel_bytes;
    const int8_t *high = x->high + row * x->stride;
    const int8_t *low = parts == 2 ? x->low + row * x->stride : high;
    floats total[4][4];
    UNROLLED(r, R) UNROLLED(s, S) total[r][s] = no_floats();
    for (int64_t g = 0; g < groups; g++) {
        ints upper[4][4], lower[4][4];
        UNROLLED(r, R) UNROLLED(s, S) upper[r][s] = lower[r][s] = no_ints();
        for (int64_t k = 0; k < w->group; k += per_vector) {
            bytes first[4], second[4];
            UNROLLED(s, S) {
                const uint8_t *from = codes + s * panel_bytes;
                _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T0);
                first[s] = load_bytes(from);
                if (bits == 4) second[s] = high_nibbles(first[s]), first[s] = low_nibbles(first[s]);
            }
            UNROLLED(r, R) {
                const int8_t *h = high + r * x->stride + k, *l = low + r * x->stride + k;
                UNROLLED(s, S) {
                    if (bits == 4) {
                        upper[r][s] = dot_nibbles(upper[r][s], first[s], four(h));
                        lower[r][s] = dot_nibbles(lower[r][s], first[s], four(l));
                        upper[r][s] = dot_nibbles(upper[r][s], second[s], four(h + 4));
                        lower[r][s] = dot_nibbles(lower[r][s], second[s], four(l + 4));
                    } else {
                        upper[r][s] = dot_bytes(upper[r][s], first[s], four(h));
                        if (parts == 2) lower[r][s] = dot_bytes(lower[r][s], first[s], four(l));
                    }
                }
            }
            codes += 64;
        }
        high += w->group;
        low += w->group;
        UNROLLED(s, S) {
            const int64_t place = ((panel + s) * groups + g) * LANES;
            const floats scales = load_scales(w->scales, place, w->scale_type);
            const ints zeros = w->zeros ? widened((const uint8_t *)w->zeros + place)
                                        : splat(bits == 4 ? 8 : 128);
            UNROLLED(r, R) {
                const int64_t at = (row + r) * groups + g;
                ints sum = parts == 2 ? joined(upper[r][s], lower[r][s]) : upper[r][s];
                sum = minus(sum, times(zeros, splat(x->sums[at])));
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

#define TILE(R, S)                                             \
    do {                                                       \
        tile(w, x, row, panel, found, R, S, bits, parts);      \
        keep(w, row, panel, found, R, S, y, type);             \
    } while (0)

/* Rows from `row` to `end` by S panels, several rows at a time. */
INLINE void rows_by_panels(const packed *w, const activations *x, int64_t row, int64_t end,
                           int64_t panel, const int S, const int bits, const int parts, void *y,
                           int type) {
    float found[4 * 4 * LANES];
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
        for (; panel + 4 <= last; panel += 4) TILE(1, 4);
    }
    if (parts == 1) /* whose sums take half the registers */
        for (; panel + 4 <= last; panel += 4)
            rows_by_panels(w, x, row, end, panel, 4, bits, parts, y, type);
    for (; panel + 2 <= last; panel += 2)
        rows_by_panels(w, x, row, end, panel, 2, bits, parts, y, type);
#endif
    for (; panel < last; panel++) rows_by_panels(w, x, row, end, panel, 1, bits, parts, y, type);
}

#define ROWS_AT_ONCE 128 /* whose activations stay in a core's cache while panels pass by */

/* y [rows, outputs] = x [rows, inputs] @ w^T, both of number format `type`. */
void native_integer_product(const packed *w, const void *x, void *y, int64_t rows, int32_t type,
                    void *scratch, int32_t threads) {
    const int64_t groups = w->inputs / w->group;
    activations a = {.inputs = w->inputs, .group = w->group, .stride = w->inputs + APART};
    const int64_t size = rows * a.stride;
    a.scales = scratch;
    a.sums = (int32_t *)(a.scales + rows * groups);
    a.high = (int8_t *)(a.sums + rows * groups);
    a.low = w->parts == 2 ? a.high + size : 0;
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
            for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
                const int64_t end = row + ROWS_AT_ONCE < rows ? row + ROWS_AT_ONCE : rows;
                if (w->bits == 4) panels(w, &a, row, end, first, last, 4, 2, y, type);
                else if (w->parts == 2) panels(w, &a, row, end, first, last, 8, 2, y, type);
                else panels(w, &a, row, end, first, last, 8, 1, y, type);
            }
        }
    }
}

const char *native_instructions(void) { return INSTRUCTIONS; }
