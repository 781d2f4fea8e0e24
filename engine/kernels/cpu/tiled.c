/* Products of many rows in tiles, in bfloat16, or in float32 where vectors multiply that faster:
 *
 *   y[t, n] = bias[n] + sum over k of w[n, k] * x[t, k]
 *
 * Sums are float32, in one order for every row. Weights of a few hundred outputs are brought to a
 * core's second cache, once for all rows, and pass by 32 rows at a time, whose activations are in its
 * first one: from where torch holds them, as left operands; or from the panels of dequantized.c,
 * as right ones. A row of y is written many outputs at a time: single lines far apart
 * would take longer than the products.
 */
#include "numbers.h"
#include "tiles.h"

#if TILES

#define NEAR (FLOATS ? 128 : 512) /* inputs at a time, of which 32 rows stay in the first cache */
#define DIRECT (AMX ? 128 : 0) /* rows, up to which weights are used where they lie: vectors would
                                   read each line of a wide one from the second cache, 16 times */
#define WIDEST 512          /* outputs at a time, or as many as ... */
#define CHUNK_BYTES (AMX ? 786432 : 524288) /* ... stay in the second, beside those to come */
#define AHEAD 128           /* inputs that are brought near before they are arranged */

typedef struct {
    int64_t outputs, inputs, rows;
    const uint16_t *weight, *bias; /* bias NULL: none */
    int64_t stride;                /* between rows of the weight */
    const packed *codes;           /* in place of a weight */
    const element *x;              /* operands of 16 rows each, zeros for rows that are not */
    uint16_t *y;                   /* [rows, outputs] */
} product;

/* Up to 16 rows as left operands [inputs / STEP][16][STEP], zeros for those that are not. */
static void as_left(const uint16_t *from, int64_t stride, int64_t inputs, int64_t rows,
                    element *to) {
    for (int64_t k = 0; k < inputs; k += STEP)
        for (int64_t r = 0; r < 16; r++, to += STEP)
            store_bytes((uint8_t *)to, r < rows ? load_step(from + r * stride + k) : no_ints());
}

/* The same as right operands: [inputs / EACH][16 rows][EACH]. */
static void as_right(const uint16_t *x, int64_t inputs, int64_t rows, element *to) {
    for (int64_t k = 0; k < inputs; k += STEP, to += 16 * STEP) {
        bytes lanes[16];
        for (int r = 0; r < rows; r++)
            _mm_prefetch((const char *)(x + r * inputs + k + AHEAD), _MM_HINT_T0);
        for (int r = 0; r < 16; r++) lanes[r] = r < rows ? load_step(x + r * inputs + k) : no_ints();
        transpose(lanes);
        for (int r = 0; r < 16; r++) store_bytes((uint8_t *)(to + STEP * r), lanes[r]);
    }
}

/* sums of 32 rows by 32 outputs, of which `here` are left, to bfloat16 out [32][WIDEST]. */
INLINE void round_sums(const float *sums, const uint16_t *bias, int64_t here, uint16_t *out,
                       const int is_codes) {
    for (int n = 0; n < 2 && 16 * n < here; n++) {
        const __mmask16 lanes = here >= 16 * (n + 1) ? 0xffff : (__mmask16)((1 << here % 16) - 1);
        const floats offset = bias ? even_bfloat16s(_mm512_cvtepu16_epi32(
                                         _mm256_maskz_loadu_epi16(lanes, bias + 16 * n)))
                                   : no_floats();
        for (int r = 0; r < 2; r++) {
            bytes rows[16];
            const float *from = sums + (is_codes ? 2 * r + n : 2 * n + r) * 256;
            UNROLLED(i, 16) rows[i] = load_bytes((const uint8_t *)(from + 16 * i));
            if (!is_codes) transpose(rows);
            UNROLLED(i, 16)
                _mm256_storeu_si256(
                    (__m256i *)(out + (16 * r + i) * WIDEST + 16 * n),
                    to_bfloat16s(_mm512_add_ps((__m512)rows[i], offset)));
        }
    }
}

/* What is used next: of the next chunk, weights where they lie; of this one, 32 rows. */
typedef struct {
    lines weights, rows;
} coming;

INLINE void bring_both(void *with, int64_t step, int n) {
    coming *next = with;
    bring(&next->weights);
    bring(&next->rows);
}

/* 32 rows from `row` on by `count` outputs. near: weights as operands, or NULL: as torch holds them. */
INLINE void block(const product *p, int64_t row, int64_t output, int64_t count,
                  const element *near, lines *weights, const int is_codes) {
    _Alignas(64) float sums[WIDEST / 32][1024];
    _Alignas(64) uint16_t out[32 * WIDEST];
    const int64_t pairs = (count + 31) / 32, rows = least(32, p->rows - row);
    coming next = {*weights}; /* here, for the compiler to keep it in registers */
    if (near && row + 32 < p->rows) /* without `near` rows are few, and stay in the second cache */
        next.rows = (lines){(const uint8_t *)(p->x + (row + 32) * p->inputs), 32 * p->inputs / STEP,
                             p->inputs, 0, 0, (8 + pairs - 1) / pairs};
    for (int64_t k = 0; k < p->inputs; k += NEAR) {
        const int64_t inputs = least(NEAR, p->inputs - k), below = 1024 * p->inputs / STEP;
        const operand x = {p->x + row * p->inputs + 16 * k, below, 64, 1024, 0};
        operand w = {near + 16 * k, below, 64, 1024, 1};
        const uint16_t *lying = p->weight + output * p->stride + k;
        if (!near) w = (operand){lying, 32 * p->stride, 2 * p->stride, 64, 0};
        for (int64_t pair = 0; pair < pairs; pair++) {
            const int both = count - 32 * pair > 16;
            const tile_sums to = {sums[pair], 2048, 1024, 64};
#define BY(L, R)                                                                              \
    multiply_tiles(is_codes ? x : w, is_codes ? w : x, inputs / STEP, k == 0, to, bring_both, &next, \
                   L, R, NUMBERS)
            if (both && rows > 16) BY(2, 2);
            else if (is_codes ? rows > 16 : both) BY(2, 1);
            else if (is_codes ? both : rows > 16) BY(1, 2);
            else BY(1, 1);
#undef BY
            w.at = (const uint8_t *)w.at + 2 * below;
        }
    }
    *weights = next.weights;
    for (int64_t pair = 0; pair < pairs; pair++)
        round_sums(sums[pair], p->bias ? p->bias + output + 32 * pair : NULL, count - 32 * pair,
                   out + 32 * pair, is_codes);
    for (int64_t r = 0; r < rows; r++)
        memcpy(p->y + (row + r) * p->outputs + output, out + r * WIDEST, 2 * count);
}

/* All rows by `count` outputs. after: outputs of the next chunk. */
static void chunk(const product *p, int64_t output, int64_t count, int64_t after, element *near) {
    const int64_t line = p->inputs / 32;
    lines next = {0};
    if (!p->codes)
        next = (lines){(const uint8_t *)(p->weight + (output + count) * p->stride), after * line, line,
                       0, 2 * (p->stride - p->inputs), weight_rate(p->rows)};
    for (int64_t n = 0; near && n < count; n += 16) {
        element *to = near + n * p->inputs;
        if (p->codes) numbers_as_operands(p->codes, (output + n) / 16, to);
        else
            as_left(p->weight + (output + n) * p->stride, p->stride, p->inputs,
                    least(16, p->outputs - output - n), to);
    }
    for (int64_t row = 0; row < p->rows; row += 32) {
        if (p->codes) block(p, row, output, count, near, &next, 1);
        else block(p, row, output, count, near, &next, 0);
    }
}

static void multiply(product *p, const uint16_t *x, element *scratch, int32_t threads) {
    if (p->rows == 0) return;
    const int64_t panels = (p->outputs + 15) / 16, whole = (p->rows + 15) / 16 * 16;
    const int is_once = p->rows <= DIRECT && !p->codes && p->outputs % 16 == 0;
    const int64_t fitting = is_once ? 32 : CHUNK_BYTES / (int64_t)sizeof(element) / p->inputs / 32 * 32;
    const int64_t widest = most(32, least(WIDEST, fitting));
    p->x = scratch;
#pragma omp parallel num_threads(threads)
    {
        const tile_shapes before = begin_tiles(64);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < whole; r += 16) {
            const uint16_t *from = x + r * p->inputs;
            element *to = scratch + r * p->inputs;
            const int64_t count = least(p->rows - r, 16);
            if (p->codes) as_left(from, p->inputs, p->inputs, count, to);
            else as_right(from, p->inputs, count, to);
        }
#pragma omp for schedule(static)
        for (int32_t share = 0; share < threads; share++) {
            const int64_t first = panels * share / threads * 16;
            const int64_t last = least(p->outputs, panels * (share + 1) / threads * 16);
            element *near = is_once ? NULL : scratch + (whole + share * widest) * p->inputs;
            for (int64_t n = first, count; n < last; n += count) {
                count = least(widest, last - n);
                chunk(p, n, count, least(widest, last - n - count), near);
            }
        }
        end_tiles(&before);
    }
}
#endif

/* x of bfloat16 [rows, inputs], which are a multiple of 32; weight [outputs, inputs], `stride` between
 * its rows; bias NULL: none. scratch: elements [rows filled up to 16 + threads * at most 512,
 * inputs]. */
void native_tiled_product(const uint16_t *weight, int64_t outputs, int64_t inputs, int64_t stride,
                          const uint16_t *bias, const uint16_t *x, uint16_t *y, int64_t rows,
                          void *scratch, int32_t threads) {
#if TILES
    product p = {outputs, inputs, rows, weight, bias, stride, NULL, NULL, y};
    multiply(&p, x, scratch, threads);
#endif
}

/* Codes as dequantized.c has them; x and y of bfloat16. */
void native_tiled_codes_product(const packed *w, const uint16_t *x, uint16_t *y, int64_t rows,
                                void *scratch, int32_t threads) {
#if TILES
    product p = {w->outputs, w->inputs, rows, NULL, NULL, 0, w, NULL, y};
    multiply(&p, x, scratch, threads);
#endif
}
