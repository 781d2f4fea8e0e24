/* Numbers of any format as float32, and e^x. */
#pragma once

#include "vectors.h"

/* Weights as integer.c and dequantized.c multiply them: panels of LANES outputs. */
typedef struct {
    int64_t outputs, inputs, group;
    int32_t bits;       /* integer.c: 4 or 8 */
    int32_t parts;      /* integer.c: of an activation, 1 or 2 */
    int32_t kind;       /* dequantized.c: of the codes */
    int32_t shared;     /* dequantized.c: scales of a whole panel */
    int32_t scale_type; /* F32, BF16 or F16 */
    const uint8_t *codes;
    const void *scales;
    const void *zeros;  /* uint8 for integer.c, else int8; NULL: half of the range, or none */
    const float *table; /* of 16 */
} packed;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

INLINE float from_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float found;
    memcpy(&found, &wide, sizeof found);
    return found;
}

/* To nearest, ties to even; NaN stays NaN. */
INLINE uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return value != value ? 0x7fc0 : (uint16_t)rounded;
}

/* count numbers of any type from x on, as float32. */
INLINE void read_floats(float *to, const void *x, int64_t from, int64_t count, int type) {
    if (type == F32) {
        memcpy(to, (const float *)x + from, sizeof(float) * count);
    } else if (type == BF16) {
        const uint16_t *source = (const uint16_t *)x + from;
        for (int64_t i = 0; i < count; i++) to[i] = from_bfloat16(source[i]);
    } else {
        const uint16_t *source = (const uint16_t *)x + from;
        int64_t i = 0;
        for (; i + 8 <= count; i += 8)
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(source + i))));
        for (; i < count; i++) to[i] = _cvtsh_ss(source[i]);
    }
}

INLINE void write_floats(void *to, int64_t place, const float *from, int64_t count, int type) {
    if (type == F32) {
        memcpy((float *)to + place, from, sizeof(float) * count);
    } else if (type == BF16) {
        uint16_t *target = (uint16_t *)to + place;
        for (int64_t i = 0; i < count; i++) target[i] = to_bfloat16(from[i]);
    } else {
        uint16_t *target = (uint16_t *)to + place;
        for (int64_t i = 0; i < count; i++) target[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
    }
}

/* Largest magnitude; NaN where there is one. As bits, in whose order NaN is above infinity. */
INLINE float largest_of(const float *x, int64_t count) {
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        found = bits > found ? bits : found;
    }
    float result;
    memcpy(&result, &found, sizeof result);
    return result;
}

/* e^x from 2^-126 on, infinity from 2^127.5 on (the polynomial of Cephes' expf): a loop of it
 * becomes vectors. The same on every processor. */
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
