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

/* LANES numbers of x from `place` on, or the `left` that there are and zeros. */
INLINE floats numbers_at(const void *x, int64_t place, int64_t left, int type) {
    if (left >= LANES) return load_numbers(x, place, type);
    float some[LANES] = {0};
    read_floats(some, x, place, left, type);
    return load_floats(some);
}

/* The other way round: the first `left` of `from`, or all. is_exact: else numbers too small to be normal may
 * become 0 in bfloat16, by an instruction of the processor. */
INLINE void put_numbers(void *to, int64_t place, int64_t left, floats from, int type, const int is_exact) {
    float some[LANES];
    if (left < LANES) {
        store_floats(some, from);
        write_floats(to, place, some, left, type);
    } else if (type == F32) {
        store_floats((float *)to + place, from);
    } else {
        store_16_bits((uint16_t *)to + place, from, type, is_exact);
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

/* e^x from 2^-126 on, infinity from 2^127.5 on (the polynomial of Cephes' expf). The same on every
 * processor. */
INLINE floats power(floats x) {
    x = smaller(splat_float(89.0f), larger(splat_float(-87.0f), x));
    const floats near = splat_float(12582912.0f); /* whose last bit is one */
    const floats shifted = product_plus(x, splat_float(1.44269504f), near), whole = less(shifted, near);
    const floats rest = plus_scaled(plus_scaled(x, whole, -0.693359375f), whole, 2.12194440e-4f);
    const floats square = scaled(rest, rest), one = splat_float(1.0f);
    floats sum = product_plus(rest, splat_float(1.9875691500e-4f), splat_float(1.3981999507e-3f));
    const floats middle = product_plus(rest, splat_float(8.3334519073e-3f), splat_float(4.1665795894e-2f));
    const floats low = product_plus(rest, splat_float(1.6666665459e-1f), splat_float(5.0000001201e-1f));
    sum = product_plus(product_plus(sum, square, middle), square, low);
    sum = product_plus(sum, square, plus_scaled(rest, one, 1.0f));
    return scaled(sum, from_bits(exponents(minus(bits_of(shifted), splat(0x4b400000 - 127)))));
}

INLINE float power_of(float x) {
    float all[LANES];
    store_floats(all, power(splat_float(x)));
    return all[0];
}
