/* Activations as integers.
 *
 * With two parts a group of inputs is rounded to 16 bits, q = 256 * high + low, its largest to
 * 32512: finer than the 8 bits of bfloat16 or the 11 of float16 that it came from, but for numbers
 * far below the largest of their group. With one part a row is rounded to 8 bits, its largest to
 * 127, half up.
 */
#pragma once

#include "numbers.h"

#include <math.h>

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
