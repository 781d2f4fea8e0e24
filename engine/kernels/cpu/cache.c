/* Writes the keys and values of a step to their pages. */
#include <math.h>

#include "pages.h"

/* The code of float8_e4m3fn nearest to x, ties to even; |x| up to 448. NaN stays NaN. */
INLINE uint8_t to_e4m3(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t size = bits & 0x7fffffff;
    /* three digits of the fraction are kept, and the exponent's bias goes from 127 to 7 */
    const uint32_t normal = ((size + 0x7ffff + ((size >> 20) & 1)) >> 20) - (120u << 3);
    /* below 2^-6 codes count steps of 2^-9: added to 2^14, whose last bit that is */
    float magnitude, counted;
    memcpy(&magnitude, &size, sizeof magnitude);
    magnitude = size < 0x3c800000u ? magnitude : 0.0f;
    counted = magnitude + 16384.0f;
    uint32_t small;
    memcpy(&small, &counted, sizeof small);
    small -= 0x46800000u;
    const uint32_t code = size > 0x7f800000u ? 0x7fu : size < 0x3c800000u ? small : normal;
    return (uint8_t)((bits >> 24 & 0x80u) | code);
}

/* Codes of x [width] with the scale that they are made with, in bfloat16 as it is stored. */
static void quantize(const stored *to, int64_t row, const float *x) {
    const int64_t width = to->width;
    const float most = to->kind == INT8 ? 127.0f : 448.0f;
    float size = largest_of(x, width);
    size = size < 1e-30f ? 1e-30f : size;
    const uint16_t kept = to_bfloat16(size * (float)(1.0 / (double)most));
    const float scale = from_bfloat16(kept);
    to->scales[row] = kept;
    if (to->kind == INT8) {
        int8_t *codes = (int8_t *)to->elements + row * width;
        for (int64_t i = 0; i < width; i++) codes[i] = (int8_t)(int32_t)nearbyintf(x[i] / scale);
    } else {
        uint8_t *codes = (uint8_t *)to->elements + row * width;
        for (int64_t i = 0; i < width; i++) {
            float code = x[i] / scale;
            code = code > 448.0f ? 448.0f : code < -448.0f ? -448.0f : code;
            codes[i] = to_e4m3(code);
        }
    }
}

static void write_row(const stored *to, int64_t row, const void *x, int64_t from, int type) {
    float wide[WIDEST];
    if (to->kind == type) {
        const int64_t size = type == F32 ? 4 : 2;
        memcpy((char *)to->elements + row * to->width * size, (const char *)x + from * size,
               to->width * size);
        return;
    }
    read_floats(wide, x, from, to->width, type);
    if (to->scales) quantize(to, row, wide);
    else write_floats(to->elements, row * to->width, wide, to->width, to->kind);
}

/* k [tokens, kv_heads, key_dim] and v [.., value_dim], whose strides are given in numbers, to
 * slots [tokens]: block * block_size + place in it. */
void native_cache_write(const pages *p, const int64_t *slots, int64_t tokens, const void *k,
                        int64_t k_token, int64_t k_head, const void *v, int64_t v_token,
                        int64_t v_head, int32_t type, int32_t threads) {
    const int64_t numbers = tokens * p->kv_heads * (p->keys.width + p->values.width);
#pragma omp parallel for schedule(static) num_threads(threads) if (numbers > ALONE)
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t block = slots[token] / p->block_size, place = slots[token] % p->block_size;
        for (int64_t head = 0; head < p->kv_heads; head++) {
            const int64_t row = (block * p->kv_heads + head) * p->block_size + place;
            write_row(&p->keys, row, k, token * k_token + head * k_head, type);
            write_row(&p->values, row, v, token * v_token + head * v_head, type);
        }
    }
}
