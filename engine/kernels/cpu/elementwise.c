/* The operations between the products, on rows of 16-bit numbers: each in one pass or two, float32
 * inside, rounded once. What a row comes to depends on no other, nor on threads or the processor.
 */
#include <math.h>

#include "numbers.h"

#define PART 256   /* numbers of a row at a time */
#define WIDEST 512 /* a head */
#define ALONE 32768 /* numbers for which waking other threads takes longer than they save */

/* Sum of squares: of 64 sums in one order. */
INLINE float squares(const void *x, int64_t from, int64_t width, const int type) {
    floats sum[4] = {no_floats(), no_floats(), no_floats(), no_floats()};
    float part[PART], found[4];
    for (int64_t k = 0; k < width; k += PART) {
        const int64_t count = least(PART, width - k), whole = (count + 63) / 64 * 64;
        read_floats(part, x, from + k, count, type);
        memset(part + count, 0, sizeof *part * (whole - count));
        for (int64_t i = 0; i < whole; i += 4 * LANES)
            UNROLLED(n, 4) {
                const floats value = load_floats(part + i + n * LANES);
                sum[n] = plus_product(sum[n], value, value);
            }
    }
    _mm_storeu_ps(found, sums_of_four(sum[0], sum[1], sum[2], sum[3]));
    return (found[0] + found[1]) + (found[2] + found[3]);
}

INLINE float scale_of(float squares, int64_t width, float eps) {
    return 1.0f / sqrtf(squares / (float)width + eps);
}

INLINE void norm_row(const void *x, int64_t from, const void *weight, void *y, int64_t width,
                     float eps, float offset, const int type) {
    const float scale = scale_of(squares(x, from, width, type), width, eps);
    float part[PART], factor[PART];
    for (int64_t k = 0; k < width; k += PART) {
        const int64_t count = least(PART, width - k);
        read_floats(part, x, from + k, count, type);
        read_floats(factor, weight, k, count, type);
        for (int64_t i = 0; i < count; i++) part[i] = part[i] * scale * (offset + factor[i]);
        write_floats(y, from + k, part, count, type);
    }
}

INLINE void add_row(const void *x, const void *residual, void *total, int64_t from, int64_t width,
                    const int type) {
    float part[PART], other[PART];
    for (int64_t k = 0; k < width; k += PART) {
        const int64_t count = least(PART, width - k);
        read_floats(part, x, from + k, count, type);
        read_floats(other, residual, from + k, count, type);
        for (int64_t i = 0; i < count; i++) part[i] += other[i];
        write_floats(total, from + k, part, count, type);
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

INLINE void rotate_token(const heads *h, int64_t token, const int type) {
    float cos[WIDEST], sin[WIDEST], factor[2][WIDEST], value[WIDEST], found[WIDEST];
    const int64_t width = h->width, half = h->turned / 2;
    read_floats(cos, h->cos, token * h->turned, h->turned, type);
    read_floats(sin, h->sin, token * h->turned, h->turned, type);
    if (h->queries) {
        read_floats(factor[0], h->queries, 0, width, type);
        read_floats(factor[1], h->keys, 0, width, type);
    }
    for (int64_t head = 0; head < h->heads; head++) {
        const int64_t from = token * h->token_apart + head * h->head_apart;
        read_floats(value, h->x, from, width, type);
        if (h->queries) {
            const float *by = factor[head >= h->num_queries];
            const float scale = scale_of(squares(h->x, from, width, type), width, h->eps);
            for (int64_t i = 0; i < width; i++) value[i] = value[i] * scale * (h->offset + by[i]);
        }
        for (int64_t i = 0; i < half; i++) {
            found[i] = value[i] * cos[i] - value[half + i] * sin[i];
            found[half + i] = value[half + i] * cos[half + i] + value[i] * sin[half + i];
        }
        for (int64_t i = 2 * half; i < width; i++) found[i] = value[i];
        write_floats(h->y, (token * h->heads + head) * width, found, width, type);
    }
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
    float part[PART], factor[PART];
    for (int64_t k = 0; k < size; k += PART) {
        const int64_t count = least(PART, size - k);
        read_floats(part, x, gate + k, count, type);
        read_floats(factor, x, up + k, count, type);
        for (int64_t i = 0; i < count; i++)
            part[i] = part[i] / (1.0f + power(-part[i])) * factor[i];
        write_floats(y, row * size + k, part, count, type);
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
