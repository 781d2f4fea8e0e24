/* The operations between the products, on rows of 16-bit numbers: each in one pass or two, float32
 * inside, rounded once. What a row comes to depends on no other, nor on threads or, but for numbers too
 * small to be normal, the processor.
 */
#include <math.h>

#include "numbers.h"

#define PART 256    /* numbers of a row at a time */
#define TOGETHER 64 /* heads of a token */
#define ALONE 32768 /* numbers for which waking other threads takes longer than they save */

/* Sum of squares: of 64 sums in one order. */
INLINE float squares(const void *x, int64_t from, int64_t width, const int type) {
    floats sum[4] = {no_floats(), no_floats(), no_floats(), no_floats()};
    float found[4];
    for (int64_t k = 0; k < width; k += 4 * LANES)
        UNROLLED(n, 4) {
            const int64_t left = width - k - n * LANES;
            if (left <= 0) break;
            const floats value = numbers_at(x, from + k + n * LANES, left, type);
            sum[n] = plus_product(sum[n], value, value);
        }
    _mm_storeu_ps(found, sums_of_four(sum[0], sum[1], sum[2], sum[3]));
    return (found[0] + found[1]) + (found[2] + found[3]);
}

INLINE float scale_of(float squares, int64_t width, float eps) {
    return 1.0f / sqrtf(squares / (float)width + eps);
}

INLINE floats factor_at(const void *weight, int64_t place, int64_t left, float offset, const int type) {
    return plus_scaled(splat_float(offset), numbers_at(weight, place, left, type), 1.0f);
}

INLINE void norm_row(const void *x, int64_t from, const void *weight, void *y, int64_t width,
                     float eps, float offset, const int type) {
    const floats scale = splat_float(scale_of(squares(x, from, width, type), width, eps));
    for (int64_t k = 0; k < width; k += LANES) {
        const int64_t left = width - k;
        const floats normed = scaled(numbers_at(x, from + k, left, type), scale);
        put_numbers(y, from + k, left, scaled(normed, factor_at(weight, k, left, offset, type)), type,
                    0);
    }
}

INLINE void add_row(const void *x, const void *residual, void *total, int64_t from, int64_t width,
                    const int type) {
    for (int64_t k = 0; k < width; k += LANES) {
        const floats one = numbers_at(x, from + k, width - k, type);
        const floats other = numbers_at(residual, from + k, width - k, type);
        put_numbers(total, from + k, width - k, plus_scaled(one, other, 1.0f), type, 1);
    }
}

/* y [rows, width] = x / sqrt(mean(x^2) + eps) * (offset + weight [width]); with a residual, of total
 * = x + residual in place of x. Here and below everything is of one number format, BF16 or F16. */
void native_rms_norm(const void *x, const void *residual, void *total, const void *weight, void *y,
                     int64_t rows, int64_t width, float eps, float offset, int32_t type,
                     int32_t threads) {
    const void *of = residual ? total : x;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > ALONE)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t from = row * width;
        if (type == BF16) {
            if (residual) add_row(x, residual, total, from, width, BF16);
            norm_row(of, from, weight, y, width, eps, offset, BF16);
        } else {
            if (residual) add_row(x, residual, total, from, width, F16);
            norm_row(of, from, weight, y, width, eps, offset, F16);
        }
    }
}

typedef struct {
    const void *x, *cos, *sin;       /* x [tokens, heads, width] */
    int64_t heads, width, turned;    /* cos, sin [tokens, turned] */
    int64_t token_apart, head_apart; /* of x, in numbers */
    const void *queries, *keys;      /* factors of the norms [width]; NULL: heads are not normed */
    int64_t num_queries;
    float eps, offset;
    void *y; /* [tokens, heads, width] */
} heads;

/* LANES numbers of a head from number k on, and what it is scaled by: its own part and its kind's. */
INLINE floats head_numbers(const heads *h, int64_t from, int64_t k, int64_t left, float scale,
                           floats factor, const int type) {
    const floats value = numbers_at(h->x, from + k, left, type);
    return h->queries ? scaled(scaled(value, splat_float(scale)), factor) : value;
}

/* Of a token, `count` heads from number `first` on. */
INLINE void rotate_some(const heads *h, int64_t token, int64_t first, int64_t count, const int type) {
    const int64_t width = h->width, half = h->turned / 2, angles = token * h->turned;
    const int64_t x = token * h->token_apart + first * h->head_apart;
    const int64_t y = (token * h->heads + first) * width;
    float scales[TOGETHER];
    for (int64_t n = 0; h->queries && n < count; n++)
        scales[n] = squares(h->x, x + n * h->head_apart, width, type);
    for (int64_t n = 0; h->queries && n < count; n++) scales[n] = scale_of(scales[n], width, h->eps);
#define FACTORS(k, left)                                                                        \
    {h->queries ? factor_at(h->queries, k, left, h->offset, type) : no_floats(),                \
     h->queries ? factor_at(h->keys, k, left, h->offset, type) : no_floats()}
    for (int64_t k = 0; k < half; k += LANES) {
        const int64_t left = half - k;
        const floats factors[2][2] = {FACTORS(k, left), FACTORS(half + k, left)};
        floats cos[2], sin[2];
        UNROLLED(i, 2) {
            cos[i] = numbers_at(h->cos, angles + i * half + k, left, type);
            sin[i] = numbers_at(h->sin, angles + i * half + k, left, type);
        }
        for (int64_t n = 0; n < count; n++) {
            const int64_t from = x + n * h->head_apart, to = y + n * width + k;
            const int is_key = first + n >= h->num_queries;
            const floats a = head_numbers(h, from, k, left, scales[n], factors[0][is_key], type);
            const floats b = head_numbers(h, from, half + k, left, scales[n], factors[1][is_key], type);
            put_numbers(h->y, to, left, less(scaled(a, cos[0]), scaled(b, sin[0])), type, 0);
            put_numbers(h->y, to + half, left,
                        plus_scaled(scaled(b, cos[1]), scaled(a, sin[1]), 1.0f), type, 0);
        }
    }
    for (int64_t k = 2 * half; k < width; k += LANES) {
        const floats factors[2] = FACTORS(k, width - k);
        for (int64_t n = 0; n < count; n++) {
            const floats value = head_numbers(h, x + n * h->head_apart, k, width - k, scales[n],
                                              factors[first + n >= h->num_queries], type);
            put_numbers(h->y, y + n * width + k, width - k, value, type, 0);
        }
    }
#undef FACTORS
}

INLINE void rotate_token(const heads *h, int64_t token, const int type) {
    for (int64_t first = 0; first < h->heads; first += TOGETHER)
        rotate_some(h, token, first, least(TOGETHER, h->heads - first), type);
}

/* Heads normed, where there are factors, and turned: x cos + rotate_half(x) sin. */
void native_rotate_heads(const void *x, int64_t token_apart, int64_t head_apart, const void *cos,
                         const void *sin, int64_t turned, const void *queries, const void *keys,
                         int64_t num_queries, float eps, float offset, void *y, int64_t tokens,
                         int64_t num_heads, int64_t width, int32_t type, int32_t threads) {
    const heads told = {x, cos, sin, num_heads, width, turned, token_apart, head_apart,
                        queries, keys, num_queries, eps, offset, y};
#pragma omp parallel for schedule(static) num_threads(threads) \
    if (tokens * num_heads * width > ALONE)
    for (int64_t token = 0; token < tokens; token++) {
        if (type == BF16) rotate_token(&told, token, BF16);
        else rotate_token(&told, token, F16);
    }
}

INLINE void silu_row(const void *x, int64_t row, void *y, int64_t size, const int type) {
    const int64_t gate = row * 2 * size, up = gate + size;
    for (int64_t k = 0; k < size; k += LANES) {
        const int64_t left = size - k;
        const floats some = numbers_at(x, gate + k, left, type), one = splat_float(1.0f);
        const floats silu = quotient(some, plus_scaled(one, power(less(no_floats(), some)), 1.0f));
        const floats found = scaled(silu, numbers_at(x, up + k, left, type));
        put_numbers(y, row * size + k, left, found, type, 0);
    }
}

/* y [rows, size] = silu(gate) * up, of x [rows, 2 size], gate before up. */
void native_silu_and_mul(const void *x, void *y, int64_t rows, int64_t size, int32_t type,
                         int32_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * size > ALONE)
    for (int64_t row = 0; row < rows; row++) {
        if (type == BF16) silu_row(x, row, y, size, BF16);
        else silu_row(x, row, y, size, F16);
    }
}

/* y [count] = a + b. */
void native_add(const void *a, const void *b, void *y, int64_t count, int32_t type,
                int32_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (count > ALONE)
    for (int64_t k = 0; k < count; k += PART) {
        const int64_t here = least(PART, count - k);
        if (type == BF16) add_row(a, b, y, k, here, BF16);
        else add_row(a, b, y, k, here, F16);
    }
}
