/* Activations as integers, for the products of integer.c.
 *
 * A row, or with two parts a group of its inputs, is rounded to 8 bits, its largest to 127, half
 * up. For the codes of a weight of 4 bits that is fine enough (llama.cpp rounds activations to 8
 * bits in groups of 32 as well), but where a number stands out of its group: with two parts that is
 * rounded to q = 256 * high + low, its largest to 32512: finer than the 8 bits of bfloat16 or the
 * 11 of float16 that it came from, but for numbers far below the largest. That depends on the group
 * alone, not on the rows beside it.
 */
#pragma once

#include <math.h>

#include "numbers.h"

typedef struct {
    int64_t inputs, group, groups; /* group: inputs that share a scale */
    int64_t rows;                  /* filled up to whole tiles */
    int64_t stride;                /* between rows: not the inputs, see APART */
    int64_t step;                  /* 0, or of tiles [16 rows, step] in the order [row, input] */
    int8_t *high, *low;            /* [rows, stride], or tiles; low: with two parts, where has_low */
    float *scales;                 /* [groups, rows] */
    int32_t *sums;                 /* [groups, rows]: of q */
    uint8_t *has_low;              /* [groups, rows] */
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
    for (int64_t g = 0; g < to->groups; g++) round_group(to, row, g, x, type);
}
