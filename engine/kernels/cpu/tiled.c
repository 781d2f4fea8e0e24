/* Products of many rows with plain weights of bfloat16, in tiles, the weights read where torch holds
 * them:
 *
 *   y[t, n] = bias[n] + sum over k of w[n, k] * x[t, k]
 *
 * 16 rows of a weight are a left operand as they lie, so the activations are the right one: y is
 * computed as its transpose. Sums are float32, in one order for every row.
 */
#include "numbers.h"
#include "tiles.h"

#if TILES

#define STEP 32  /* inputs of a tile */
#define BAND 512         /* rows at a time, or fewer, that ... */
#define BAND_BYTES 1048576 /* ... they stay in a core's cache while the weights pass by */
#define NEAR 256 /* inputs at a time, whose weights stay in its first one */

typedef struct {
    int64_t outputs, inputs, stride; /* stride: between rows of the weight */
    const uint16_t *weight, *bias;   /* bias NULL: none */
    uint16_t *y;                     /* [rows, outputs] */
} product;

/* Up to 16 rows of x as right operands: [inputs / 2][16 rows][2], zeros for rows that are not. */
static void arrange(const uint16_t *x, int64_t inputs, int64_t rows, uint16_t *to) {
    for (int64_t k = 0; k < inputs; k += STEP, to += 16 * STEP) {
        bytes pairs[16];
        for (int r = 0; r < 16; r++)
            pairs[r] = r < rows ? load_bytes((const uint8_t *)(x + r * inputs + k)) : no_ints();
        transpose(pairs);
        for (int r = 0; r < 16; r++) store_bytes((uint8_t *)(to + 32 * r), pairs[r]);
    }
}

/* Adds products of 16 * N outputs and 16 * R rows of x, `below` the first the second 16, over up to
 * NEAR inputs, to sums [N][R][16 outputs][16 rows], or puts them there where `first`. The weights
 * are w's, and kept in `near` meanwhile; or w is NULL, and they are those in `near`. */
INLINE void dot(const uint16_t *w, int64_t stride, uint16_t *near, const uint16_t *x, int64_t below,
                int64_t inputs, int first, float *sums, const int N, const int R) {
    if (first) {
        TILE_ZERO(0);
        if (R == 2) TILE_ZERO(1);
        if (N == 2) TILE_ZERO(2);
        if (N == 2 && R == 2) TILE_ZERO(3);
    } else {
        TILE_LOAD(0, sums, 64);
        if (R == 2) TILE_LOAD(1, sums + 256, 64);
        if (N == 2) TILE_LOAD(2, sums + 512, 64);
        if (N == 2 && R == 2) TILE_LOAD(3, sums + 768, 64);
    }
    for (int64_t k = 0; k < inputs; k += STEP, near += 32 * STEP, x += 16 * STEP) {
        if (w) {
            TILE_LOAD(4, w + k, 2 * stride);
            TILE_STORE(4, near, 64);
        } else {
            TILE_LOAD(4, near, 64);
        }
        TILE_LOAD(6, x, 64);
        TILE_DOT("tdpbf16ps", 0, 4, 6);
        if (R == 2) {
            TILE_LOAD(7, x + below, 64);
            TILE_DOT("tdpbf16ps", 1, 4, 7);
        }
        if (N == 2) {
            if (w) {
                TILE_LOAD(5, w + 16 * stride + k, 2 * stride);
                TILE_STORE(5, near + 16 * STEP, 64);
            } else {
                TILE_LOAD(5, near + 16 * STEP, 64);
            }
            TILE_DOT("tdpbf16ps", 2, 5, 6);
            if (R == 2) TILE_DOT("tdpbf16ps", 3, 5, 7);
        }
    }
    TILE_STORE(0, sums, 64);
    if (R == 2) TILE_STORE(1, sums + 256, 64);
    if (N == 2) TILE_STORE(2, sums + 512, 64);
    if (N == 2 && R == 2) TILE_STORE(3, sums + 768, 64);
}

/* sums [N][2][16 outputs][16 rows] to y: `rows` rows from `row` on, 16 * N outputs from `output` on.
 * A line of the cache at a time: rows of y may all lie in the same few lines. */
INLINE void keep(const product *p, const float *sums, int64_t row, int64_t rows, int64_t output,
                 const int N) {
    bytes by_row[2][16];
    floats bias[2];
    UNROLLED(n, N) {
        UNROLLED(i, 16) by_row[n][i] = load_bytes((const uint8_t *)(sums + 512 * n + 16 * i));
        transpose(by_row[n]);
        bias[n] = p->bias ? from_bfloat16s(p->bias + output + 16 * n) : no_floats();
    }
    for (int r = 0; r < rows; r++) {
        uint16_t *to = p->y + (row + r) * p->outputs + output;
        const floats first = _mm512_add_ps(_mm512_castsi512_ps(by_row[0][r]), bias[0]);
        if (N == 1) {
            _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(first));
        } else {
            const floats second = _mm512_add_ps(_mm512_castsi512_ps(by_row[1][r]), bias[1]);
            store_bytes((uint8_t *)to, (bytes)_mm512_cvtne2ps_pbh(second, first));
        }
    }
}

/* Bring near what the next blocks of a band need, a share of it beside each block of 32 rows. */
INLINE void fetch(const uint16_t *w, int64_t stride, int64_t inputs, int64_t block, int64_t blocks) {
    for (int64_t n = 32 * block / blocks; n < 32 * (block + 1) / blocks; n++)
        for (int64_t k = 0; k < inputs; k += STEP)
            _mm_prefetch((const char *)(w + n * stride + k), _MM_HINT_T1);
}

INLINE void band(const product *p, const uint16_t *x, int64_t row, int64_t rows, int64_t output,
                 const int N) {
    _Alignas(64) float sums[BAND / 32][1024];
    _Alignas(64) uint16_t near[32 * NEAR];
    const uint16_t *w = p->weight + output * p->stride;
    for (int64_t k = 0; k < p->inputs; k += NEAR)
        for (int64_t r = 0; r < rows; r += 32) {
            const uint16_t *from = r ? NULL : w + k, *rows_of = x + r * p->inputs + 16 * k;
            const int64_t inputs = least(NEAR, p->inputs - k), below = 16 * p->inputs;
            float *to = sums[r / 32];
            const int64_t left = p->inputs - k - NEAR; /* after these, of the same outputs */
            const uint16_t *next = left > 0 ? w + k + NEAR : w + 32 * p->stride;
            if (N == 2 && output + 64 <= p->outputs)
                fetch(next, p->stride, least(NEAR, left > 0 ? left : p->inputs), r / 32,
                      (rows + 31) / 32);
            if (left <= 0)
                for (int64_t n = r; n < least(r + 32, rows); n++)
                    __builtin_prefetch(p->y + (row + n) * p->outputs + output, 1, 2);
            if (rows - r > 16) dot(from, p->stride, near, rows_of, below, inputs, k == 0, to, N, 2);
            else dot(from, p->stride, near, rows_of, below, inputs, k == 0, to, N, 1);
        }
    for (int64_t r = 0; r < rows; r += 16)
        keep(p, sums[r / 32] + r % 32 * 16, row + r, least(rows - r, 16), output, N);
}

#endif

/* x and y of bfloat16, `inputs` a multiple of 32, at least 16 outputs; scratch: bfloat16 [rows filled
 * up to 16, at most 256, inputs]. */
void native_tiled_product(const uint16_t *weight, int64_t outputs, int64_t inputs, int64_t stride,
                          const uint16_t *bias, const uint16_t *x, uint16_t *y, int64_t rows,
                          uint16_t *scratch, int32_t threads) {
#if TILES
    const product told = {outputs, inputs, stride, weight, bias, y}, *p = &told;
    const int64_t tiles = (outputs + 15) / 16;
    const int64_t at_once = most(32, least(BAND, BAND_BYTES / (2 * inputs) / 32 * 32));
#pragma omp parallel num_threads(threads)
    {
        const tile_shapes before = begin_tiles(64);
        for (int64_t row = 0; row < rows; row += at_once) {
            const int64_t count = least(rows - row, at_once);
#pragma omp for schedule(static)
            for (int64_t r = 0; r < count; r += 16)
                arrange(x + (row + r) * inputs, inputs, least(count - r, 16), scratch + r * inputs);
#pragma omp for schedule(static)
            for (int32_t share = 0; share < threads; share++) {
                const int64_t last = tiles * (share + 1) / threads;
                for (int64_t tile = tiles * share / threads; tile < last; tile += 2) {
                    /* the last 16 outputs, some of them twice, where there is no whole tile left */
                    const int64_t output = least(16 * tile, outputs - 16);
                    const int both = tile + 2 <= last && output + 32 <= outputs;
                    if (both) band(p, scratch, row, count, output, 2);
                    else band(p, scratch, row, count, output, 1), tile--;
                }
            }
        }
        end_tiles(&before);
    }
#endif
}
