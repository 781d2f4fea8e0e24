/* Products of many rows in tiles, in bfloat16, or in float32 where vectors multiply that faster:
 *
 *   y[t, n] = bias[n] + sum over k of w[n, k] * x[t, k]
 *
 * Sums are float32, in one order for every row. Weights of a few hundred outputs become right operands
 * in a core's second cache, once for all rows, from where torch holds them or from the panels of
 * dequantized.c. They pass by 32 rows at a time, whose activations are in its first cache. Up to a few
 * hundred rows weights of 12 bits (compressed.h) become right operands in the first cache, beside the
 * products of those before them: all rows, in the second cache, pass by 32 outputs at a time.
 */
#include "compressed.h"

#if TILES

#define NEAR (FLOATS ? 128 : 512) /* inputs at a time, of which 32 rows stay in the first cache */
#define FEW 256             /* rows, up to which all pass by 32 outputs of compressed ones, of which ... */
#define PIECE 128           /* ... so many inputs are decompressed at a time */
#define WIDEST 512          /* outputs of others at a time, or as many as ... */
#define CHUNK_BYTES (AMX ? 786432 : 524288) /* ... stay in the second cache */
#define COPIES 4            /* threads, of which each arranges up to ... */
#define OWN 256             /* ... rows for itself: what one has just written, the others wait for */

typedef struct {
    int64_t outputs, inputs, rows;
    const uint16_t *weight, *bias; /* bias NULL: none */
    int64_t stride;                /* between rows of the weight */
    const packed *codes;           /* in place of a weight, or ... */
    const compressed *compressed;
    const element *x;              /* operands of 16 rows each, zeros for rows that are not */
    uint16_t *y;                   /* [rows, outputs] */
} product;

/* Up to 16 rows as left operands [inputs / STEP][16][STEP], zeros for those that are not. */
static void as_left(const uint16_t *from, int64_t inputs, int64_t rows, element *to) {
    for (int64_t r = 0; r < 16; r++, from += inputs, to += STEP)
        for (int64_t k = 0; k < inputs; k += STEP)
            store_bytes((uint8_t *)(to + 16 * k), r < rows ? load_step(from + k) : no_ints());
}

/* The same as right operands [inputs / EACH][16 rows][EACH]. Brings the 16 rows after these near,
 * where they follow each other. */
static void as_right(const uint16_t *from, int64_t stride, int64_t inputs, int64_t rows,
                     element *to) {
    for (int64_t k = 0; k < inputs; k += STEP, to += 16 * STEP) {
        bytes lanes[16];
        for (int r = 0; r < 16; r++) {
            _mm_prefetch((const char *)(from + 16 * (stride + k) + STEP * r), _MM_HINT_T1);
            lanes[r] = r < rows ? load_step(from + r * stride + k) : no_ints();
        }
        transpose(lanes);
        for (int r = 0; r < 16; r++) store_bytes((uint8_t *)(to + STEP * r), lanes[r]);
    }
}

/* `bias` of 16 outputs, of which `count` are there; 0: none. */
INLINE floats offsets(const uint16_t *bias, int64_t count) {
    if (!bias || count <= 0) return no_floats();
    const __mmask16 lanes = count >= 16 ? 0xffff : (__mmask16)((1 << count) - 1);
    return even_bfloat16s(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, bias)));
}

/* sums of `rows` of 32 rows by 32 outputs, of which `here` are left, to bfloat16 out [rows][apart]. */
INLINE void round_sums(const float *sums, int64_t rows, const uint16_t *bias, int64_t here,
                       uint16_t *out, int64_t apart) {
    const floats first = offsets(bias, here), second = offsets(bias ? bias + 16 : NULL, here - 16);
    for (int64_t row = 0; row < rows; row++, out += apart) {
        const float *from = sums + row / 16 * 512 + row % 16 * 16;
        write_two(out, 0, here, load_floats(from) + first, load_floats(from + 256) + second, BF16);
    }
}

INLINE void decompress_panel(const compressed *w, int64_t panel, element *to) {
#if AMX
    runs all = runs_from(w, panel, 0, w->inputs, to, NULL);
    decompress_rest(&all);
#endif
}

INLINE void bring_rows(void *with, int64_t step, int n) { bring(with); }

#define BY(L, R, left, right, inputs, to, also, with) \
    multiply_tiles(left, right, (inputs) / STEP, k == 0, to, also, with, L, R, NUMBERS)

/* 32 rows from `row` on by `count` outputs, whose weights are in `near` as right operands. The sums of
 * two tiles are rounded beside the products of the next two. */
static void block(const product *p, int64_t row, int64_t output, int64_t count,
                  const element *near) {
    _Alignas(64) float sums[WIDEST / 32][1024];
    _Alignas(64) uint16_t out[32 * WIDEST];
    const int64_t pairs = (count + 31) / 32, rows = least(32, p->rows - row);
    uint16_t *const y = p->y + row * p->outputs + output;
    uint16_t *const to = rows == 32 ? y : out;
    const int64_t apart = rows == 32 ? p->outputs : WIDEST;
    lines next = {0}; /* of the rows that come next */
    if (row + 32 < p->rows)
        next = (lines){(const uint8_t *)(p->x + (row + 32) * p->inputs), 32 * p->inputs / STEP,
                       p->inputs, 0, 0, (8 + pairs - 1) / pairs};
    for (int64_t k = 0; k < p->inputs; k += NEAR) {
        const int64_t inputs = least(NEAR, p->inputs - k), below = 1024 * p->inputs / STEP;
        const operand x = {p->x + row * p->inputs + 16 * k, below, 64, 1024, 0};
        operand w = {near + 16 * k, below, 64, 1024, 1};
        if (p->compressed) w = (operand){near + PANEL * k, 1024, 64, 2048, 1};
        for (int64_t pair = 0; pair <= pairs; pair++) {
            if (pair < pairs) {
                const int both = count - 32 * pair > 16;
                const tile_sums here = {sums[pair], 2048, 1024, 64};
                if (both && rows > 16) BY(2, 2, x, w, inputs, here, bring_rows, &next);
                else if (rows > 16) BY(2, 1, x, w, inputs, here, bring_rows, &next);
                else if (both) BY(1, 2, x, w, inputs, here, bring_rows, &next);
                else BY(1, 1, x, w, inputs, here, bring_rows, &next);
                w.at = (const uint8_t *)w.at + 2 * below;
            }
            const int64_t done = 32 * (pair - 1);
            if (pair && k + NEAR >= p->inputs)
                round_sums(sums[pair - 1], 32, p->bias ? p->bias + output + done : NULL, count - done,
                           to + done, apart);
        }
    }
    if (rows < 32)
        for (int64_t r = 0; r < rows; r++)
            memcpy(y + r * p->outputs, out + r * WIDEST, 2 * count);
}

/* All rows by `count` outputs. */
static void chunk(const product *p, int64_t output, int64_t count, element *near) {
    for (int64_t n = 0; p->compressed && n < count; n += PANEL)
        decompress_panel(p->compressed, (output + n) / PANEL, near + n * p->inputs);
    for (int64_t n = 0; !p->compressed && n < count; n += 16) {
        element *to = near + n * p->inputs;
        if (p->codes) numbers_as_operands(p->codes, (output + n) / 16, to);
        else
            as_right(p->weight + (output + n) * p->stride, p->stride, p->inputs,
                     least(16, p->outputs - output - n), to);
    }
    for (int64_t row = 0; row < p->rows; row += 32) block(p, row, output, count, near);
}

#if AMX
/* At most FEW rows by the outputs from `output` up to `last`, whose weights are compressed: those of one
 * piece of inputs are decompressed beside the products of the piece before. */
static void by_pieces(const product *p, int64_t output, int64_t last) {
    _Alignas(64) float sums[FEW / 32][1024];
    _Alignas(64) element near[2][PIECE * PANEL];
    const compressed *w = p->compressed;
    const int64_t below = 1024 * p->inputs / STEP, piece = PIECE;
    const int64_t products = p->rows / 32 * 4 + (p->rows % 32 > 16 ? 4 : p->rows % 32 ? 2 : 0);
    int turn = 0;
    runs next = runs_from(w, output / PANEL, 0, least(piece, p->inputs), near[0], NULL);
    decompress_rest(&next);
    for (; output < last; output += PANEL) {
        for (int64_t k = 0, inputs; k < p->inputs; k += inputs) {
            inputs = least(piece, p->inputs - k);
            const operand weights = {near[turn], 1024, 64, 2048, 0};
            const int64_t after = k + inputs < p->inputs ? k + inputs : 0;
            const int64_t panel = output / PANEL + (after == 0);
            turn = !turn;
            if (PANEL * panel < last)
                next = runs_from(w, panel, after, least(piece, p->inputs - after), near[turn], next.next);
            next.rate = (STEP_RUNS + products - 1) / products;
            for (int64_t row = 0; row < p->rows; row += 32) {
                const operand x = {p->x + row * p->inputs + 16 * k, below, 64, 1024, 0};
                const tile_sums to = {sums[row / 32], 2048, 1024, 64};
                if (p->rows - row > 16) BY(2, 2, x, weights, inputs, to, decompress_some, &next);
                else BY(1, 2, x, weights, inputs, to, decompress_some, &next);
            }
            decompress_rest(&next);
        }
        for (int64_t row = 0; row < p->rows; row += 32)
            round_sums(sums[row / 32], least(32, p->rows - row), p->bias ? p->bias + output : NULL, PANEL,
                       p->y + row * p->outputs + output, p->outputs);
    }
}
#else
static void by_pieces(const product *p, int64_t output, int64_t last) {}
#endif

/* Up to 16 rows from `row` on as operands, to their place in `operands`. */
static void arrange(const product *p, const uint16_t *x, int64_t row, element *operands) {
    as_left(x + row * p->inputs, p->inputs, least(p->rows - row, 16), operands + row * p->inputs);
}

/* What a thread computes: outputs from `first` up to `last`. scratch: of operands of all rows for
 * COPIES threads or once, then of the weights that each thread has near. */
static void multiply_share(product p, const uint16_t *x, int64_t first, int64_t last,
                           element *scratch, int32_t share, int has_own) {
    const int64_t whole = (p.rows + 15) / 16 * 16, copies = p.rows <= OWN ? COPIES : 1;
    const int64_t fitting = CHUNK_BYTES / (int64_t)sizeof(element) / p.inputs / 32 * 32;
    const int64_t widest = most(32, least(WIDEST, fitting));
    element *near = scratch + (copies * whole + share * widest) * p.inputs;
    element *operands = scratch + (has_own ? share * whole * p.inputs : 0);
    for (int64_t row = 0; has_own && row < whole; row += 16) arrange(&p, x, row, operands);
    p.x = operands;
    if (p.compressed && p.rows <= FEW) by_pieces(&p, first, last);
    else
        for (int64_t n = first; n < last; n += widest) chunk(&p, n, least(widest, last - n), near);
}

static void multiply(const product *p, const uint16_t *x, element *scratch, int32_t threads) {
    if (p->rows == 0) return;
    const int64_t unit = p->compressed ? PANEL : 16, panels = (p->outputs + unit - 1) / unit;
    const int has_own = threads <= COPIES && p->rows <= OWN;
#pragma omp parallel num_threads(threads)
    {
        const tile_shapes before = begin_tiles(64);
        if (!has_own) {
#pragma omp for schedule(static)
            for (int64_t row = 0; row < p->rows; row += 16) arrange(p, x, row, scratch);
        }
#pragma omp for schedule(static)
        for (int32_t share = 0; share < threads; share++) {
            const int64_t first = panels * share / threads * unit;
            const int64_t last = least(p->outputs, panels * (share + 1) / threads * unit);
            multiply_share(*p, x, first, last, scratch, share, has_own);
        }
        end_tiles(&before);
    }
}
#endif

/* x of bfloat16 [rows, inputs], which are a multiple of 32; weight [outputs, inputs], `stride` between
 * its rows; bias NULL: none. scratch: elements [rows filled up to 16 (COPIES times, of up to OWN rows) +
 * threads * at most 512, inputs]. */
void native_tiled_product(const uint16_t *weight, int64_t outputs, int64_t inputs, int64_t stride,
                          const uint16_t *bias, const uint16_t *x, uint16_t *y, int64_t rows,
                          void *scratch, int32_t threads) {
#if TILES
    product p = {outputs, inputs, rows, weight, bias, stride, NULL, NULL, NULL, y};
    multiply(&p, x, scratch, threads);
#endif
}

/* Codes as dequantized.c has them; x and y of bfloat16. */
void native_tiled_codes_product(const packed *w, const uint16_t *x, uint16_t *y, int64_t rows,
                                void *scratch, int32_t threads) {
#if TILES
    product p = {w->outputs, w->inputs, rows, NULL, NULL, 0, w, NULL, NULL, y};
    multiply(&p, x, scratch, threads);
#endif
}

/* Weights as compressed.h has them, where there is AMX; bias NULL: none. The same sums as those of the
 * weights themselves in native_tiled_product, for any number of rows. */
void native_compressed_product(const compressed *w, const uint16_t *bias, const uint16_t *x, uint16_t *y,
                               int64_t rows, void *scratch, int32_t threads) {
#if TILES
    product p = {w->outputs, w->inputs, rows, NULL, bias, 0, NULL, w, NULL, y};
    multiply(&p, x, scratch, threads);
#endif
}
