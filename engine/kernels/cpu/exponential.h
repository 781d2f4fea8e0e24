/* e^x, the same on every processor. */
#pragma once

#include "numbers.h"

/* e^x from 2^-126 on, infinity from 2^127.5 on (the polynomial of Cephes' expf): a loop of it
 * becomes vectors. */
INLINE float power(float x) {
    x = x < -87.0f ? -87.0f : x > 89.0f ? 89.0f : x;
    const float near = 12582912.0f; /* whose last bit is one */
    const float shifted = __builtin_fmaf(x, 1.44269504f, near), whole = shifted - near;
    float rest = __builtin_fmaf(whole, -0.693359375f, x), sum = 1.9875691500e-4f, two;
    rest = __builtin_fmaf(whole, 2.12194440e-4f, rest);
    sum = __builtin_fmaf(sum, rest, 1.3981999507e-3f);
    sum = __builtin_fmaf(sum, rest, 8.3334519073e-3f);
    sum = __builtin_fmaf(sum, rest, 4.1665795894e-2f);
    sum = __builtin_fmaf(sum, rest, 1.6666665459e-1f);
    sum = __builtin_fmaf(sum, rest, 5.0000001201e-1f);
    sum = __builtin_fmaf(sum, rest * rest, rest) + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127u) << 23;
    memcpy(&two, &bits, sizeof two);
    return sum * two;
}
