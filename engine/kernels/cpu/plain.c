/* Products with plain weights of 16 bits, read where torch holds them: [outputs, inputs], row after
 * row, at any address.
 *
 *   y[t, n] = bias[n] + sum over k of w[n, k] * x[t, k]
 *
 * in float32 and rounded once. Each of 16 lanes adds up its inputs in their order, then the lanes
 * are added up: what a row comes to depends neither on the number of rows, nor on how they are
 * divided among threads, nor on the processor.
 */
#include "numbers.h"

#define STEP 32 /* inputs at a time: 64 bytes */

typedef struct {
    int64_t outputs, inputs, stride; /* stride: between rows of the weight */
    const uint16_t *weight;
    const void *bias; /* of the results' number format; NULL: none */
} plain;

/* Activations as two vectors for each step, in the order in which its weights are widened; zeros
 * after the last. */
static void widen_row(const plain *w, const void *x, int64_t row, float *to, int type) {
    const uint16_t *from = (const uint16_t *)x + row * w->inputs;
    for (int64_t k = 0; k < w->inputs; k += STEP, to += STEP) {
        const int64_t left = w->inputs - k;
        uint16_t rest[STEP] = {0};
        if (left < STEP) memcpy(rest, from + k, sizeof *rest * left);
        floats first, second;
        widen(left < STEP ? rest : from + k, type, &first, &second);
        store_floats(to, first);
        store_floats(to + LANES, second);
    }
}

/* The next STEP inputs, which for output n lie at FROM and in x at K, to every sum. */
#define ADD(FROM, K)                                                                       \
    do {                                                                                   \
        floats first[4], second[4];                                                        \
        UNROLLED(n, N)                                \
            widen((FROM), type, first + n, second + n);                                    \
        UNROLLED(r, R) {                              \
            const floats one = load_floats(x + r * stride + (K));                          \
            const floats other = load_floats(x + r * stride + (K) + LANES);                \
            UNROLLED(n, N) {                          \
                total[r][n] = plus_product(total[r][n], first[n], one);                    \
                total[r][n] = plus_product(total[r][n], second[n], other);                 \
            }                                                                              \
        }                                                                                  \
    } while (0)

/* R rows of x by N outputs from `output` on: out [R][4]. The outputs after them are fetched
 * meanwhile: rows of a weight are too short for the processor to see where they go on. */
INLINE void tile(const plain *w, int64_t output, const float *x, const int64_t stride, float *out,
                 const int R, const int N, const int type) {
    const int64_t inputs = w->inputs, apart = w->stride;
    const uint16_t *from = w->weight + output * apart;
    floats total[6][4];
    UNROLLED(r, R) UNROLLED(n, 4) total[r][n] = no_floats();
    int64_t k = 0;
    for (; k + STEP <= inputs; k += STEP) {
        UNROLLED(n, N)
            _mm_prefetch((const char *)(from + (n + N) * apart + k), _MM_HINT_T1);
        ADD(from + n * apart + k, k);
    }
    if (k < inputs) {
        uint16_t rest[4][STEP] = {{0}};
        for (int n = 0; n < N; n++)
            memcpy(rest[n], from + n * apart + k, sizeof **rest * (inputs - k));
        ADD(rest[n], k);
    }
    UNROLLED(r, R)
        _mm_storeu_ps(out + 4 * r, sums_of_four(total[r][0], total[r][1], total[r][2], total[r][3]));
}

INLINE void keep(const plain *w, const float *found, int64_t row, int R, int64_t output, int N,
                 void *y, int type) {
    float bias[4] = {0};
    if (w->bias) read_floats(bias, w->bias, output, N, type);
    for (int r = 0; r < R; r++) {
        float sums[4];
        for (int n = 0; n < 4; n++) sums[n] = found[4 * r + n] + bias[n];
        write_floats(y, (row + r) * w->outputs + output, sums, N, type);
    }
}

#define TILE(R)                                                                       \
    do {                                                                              \
        tile(w, output, x + row * stride, stride, found, R, N, type);                 \
        keep(w, found, row, R, output, N, y, type);                                   \
    } while (0)

INLINE void rows_by_outputs(const plain *w, const float *x, int64_t stride, int64_t rows,
                            int64_t output, const int N, void *y, const int type) {
    float found[6 * 4];
    int64_t row = 0;
#if WIDE_TILES
    for (; row + 6 <= rows; row += 6) TILE(6);
    for (; row + 4 <= rows; row += 4) TILE(4);
#endif
    for (; row + 2 <= rows; row += 2) TILE(2);
    for (; row < rows; row++) TILE(1);
}

INLINE void outputs_of(const plain *w, const float *x, int64_t stride, int64_t rows,
                       int64_t output, int64_t last, void *y, const int type) {
    if (WIDE_TILES || rows == 1)
        for (; output + 4 <= last; output += 4)
            rows_by_outputs(w, x, stride, rows, output, 4, y, type);
#if !WIDE_TILES /* too few registers for several rows by four */
    for (; output + 2 <= last; output += 2)
        rows_by_outputs(w, x, stride, rows, output, 2, y, type);
#endif
    for (; output < last; output++) rows_by_outputs(w, x, stride, rows, output, 1, y, type);
}

#define BLOCK 256 /* rows that are widened at a time */

/* y [rows, outputs] = x [rows, inputs] @ w^T + bias, all of number format `type`, BF16 or F16;
 * scratch float32 [rows or BLOCK, inputs filled up to a whole step + LANES]. */
void native_plain_product(const void *weight, int64_t outputs, int64_t inputs, int64_t apart,
                          const void *bias, const void *x, void *y, int64_t rows, int32_t type,
                          float *scratch, int32_t threads) {
    const plain told = {outputs, inputs, apart, weight, bias}, *w = &told;
    const int64_t stride = (inputs + STEP - 1) / STEP * STEP + LANES;
    if (rows == 1) widen_row(w, x, 0, scratch, type);
#pragma omp parallel num_threads(threads)
    for (int64_t start = 0; start < rows; start += BLOCK) {
        const int64_t end = start + BLOCK < rows ? start + BLOCK : rows;
        if (rows > 1) {
#pragma omp for schedule(static)
            for (int64_t row = start; row < end; row++)
                widen_row(w, x, row, scratch + (row - start) * stride, type);
        }
#pragma omp for schedule(static)
        for (int32_t share = 0; share < threads; share++) {
            const int64_t first = outputs * share / threads, last = outputs * (share + 1) / threads;
            void *to = (uint16_t *)y + start * outputs;
            if (type == BF16) outputs_of(w, scratch, stride, end - start, first, last, to, BF16);
            else outputs_of(w, scratch, stride, end - start, first, last, to, F16);
        }
    }
}
