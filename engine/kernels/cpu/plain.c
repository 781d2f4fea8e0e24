/* Products with plain weights of 16 bits, read where torch holds them: [outputs, inputs], row after
 * row, at any address.
 *
 *   y[t, n] = bias[n] + sum over k of w[n, k] * x[t, k]
 *
 * in float32 and rounded once. Each of 16 lanes adds up its inputs in their order, then the lanes
 * are added up: what a row comes to depends neither on the number of rows, nor on how they are
 * divided among threads, nor on the processor.
 */
#include "tiles.h"

#define TOGETHER 32 /* inputs at a time: 64 bytes */
#define GROUP 12    /* outputs whose sums are held, of ... */
#define ROWS 32     /* ... rows, at most */
#define NEXT 8192   /* numbers of a weight that one row is ahead of what it multiplies */

typedef struct {
    int64_t outputs, inputs, stride; /* stride: between rows of the weight */
    const uint16_t *weight;
    const void *bias; /* of the results' number format; NULL: none */
} plain;

/* Activations as two vectors for each step, in the order in which its weights are widened; zeros
 * after the last. */
static void widen_row(const plain *w, const void *x, int64_t row, float *to, int type) {
    const uint16_t *from = (const uint16_t *)x + row * w->inputs;
    for (int64_t k = 0; k < w->inputs; k += TOGETHER, to += TOGETHER) {
        const int64_t left = w->inputs - k;
        uint16_t rest[TOGETHER] = {0};
        if (left < TOGETHER) memcpy(rest, from + k, sizeof *rest * left);
        floats first, second;
        widen(left < TOGETHER ? rest : from + k, type, &first, &second);
        store_floats(to, first);
        store_floats(to + LANES, second);
    }
}

/* Inputs of a tile: from `start` up to `end`. */
typedef struct {
    int64_t start, end;
    int64_t part, parts; /* which of the weights used next are fetched beside it; parts 0: none */
} span;

/* The next inputs, which for output n lie at FROM and in x at K, to every sum. */
#define ADD(FROM, K)                                                                   \
    do {                                                                               \
        floats first[4], second[4];                                                    \
        UNROLLED(n, N) widen((FROM), type, first + n, second + n);                     \
        UNROLLED(r, R) {                                                               \
            const floats one = load_floats(x + r * stride + (K));                      \
            UNROLLED(n, N) total[r][n] = plus_product(total[r][n], first[n], one);     \
        }                                                                              \
        UNROLLED(r, R) {                                                               \
            const floats other = load_floats(x + r * stride + (K) + LANES);            \
            UNROLLED(n, N) total[r][n] = plus_product(total[r][n], second[n], other);  \
        }                                                                              \
    } while (0)

/* Adds the products of R rows of x and N outputs from `output` on to sums [R][GROUP][LANES], or puts
 * them there. Outputs of the next group are fetched meanwhile, or where memory alone takes time, those
 * that are NEXT numbers away: rows of a weight are too short for the processor to see where they go
 * on. */
INLINE void tile(const plain *w, int64_t output, const float *x, const int64_t stride, span of,
                 float *sums, const int R, const int N, const int type) {
    const int64_t apart = w->stride;
    const uint16_t *from = w->weight + output * apart;
    floats total[8][4];
    UNROLLED(r, R) UNROLLED(n, N)
        total[r][n] = of.start ? load_floats(sums + (r * GROUP + n) * LANES) : no_floats();
    int64_t k = of.start, wait = of.parts;
    const int64_t share = (of.end - of.start) / TOGETHER / most(1, of.parts);
    const int64_t ahead = R == 1 && N == 1 ? most(1, NEXT / w->inputs) : GROUP;
    const uint16_t *next = from + ahead * apart + of.start + of.part * share * TOGETHER;
    for (; k + TOGETHER <= of.end; k += TOGETHER) {
        if (--wait == 0) {
            UNROLLED(n, N) _mm_prefetch((const char *)(next + n * apart), _MM_HINT_T1);
            next += TOGETHER, wait = of.parts;
        }
        ADD(from + n * apart + k, k);
    }
    if (k < of.end) {
        uint16_t rest[4][TOGETHER] = {{0}};
        for (int n = 0; n < N; n++)
            memcpy(rest[n], from + n * apart + k, sizeof **rest * (of.end - k));
        ADD(rest[n], k);
    }
    UNROLLED(r, R) UNROLLED(n, N) store_floats(sums + (r * GROUP + n) * LANES, total[r][n]);
}

#define SPAN (WIDE_TILES ? 8 : 2) /* rows of most tiles */
#define BY(R)                                                                                  \
    for (; row + R <= rows; row += R) {                                                        \
        of.part = row / SPAN, of.parts = row % SPAN ? 0 : (rows + SPAN - 1) / SPAN;            \
        tile(w, output, x + row * stride, stride, of, sums + row * GROUP * LANES, R, N, type); \
    }

INLINE void by_rows(const plain *w, int64_t output, const float *x, int64_t stride, int64_t rows,
                    span of, float *sums, const int N, const int type) {
    int64_t row = 0;
#if WIDE_TILES
    if (N < 4) BY(8)
    BY(4)
#endif
    if (WIDE_TILES || N < 4) BY(2)
    BY(1)
}

#if WIDE_TILES
/* The lanes of each of GROUP vectors, added up in the order of sums_of_four; then four numbers more. */
INLINE floats added_up(const float *sums) {
#define FOLDED(to, a, b, shuffle, low, high) to = _mm512_add_ps(shuffle(a, b, low), shuffle(a, b, high))
    floats by[6], low, high, all;
    UNROLLED(i, 6)
        FOLDED(by[i], load_floats(sums + 2 * i * LANES), load_floats(sums + (2 * i + 1) * LANES),
               _mm512_shuffle_f32x4, 0x44, 0xee);
    UNROLLED(i, 3) FOLDED(by[i], by[2 * i], by[2 * i + 1], _mm512_shuffle_ps, 0x44, 0xee);
    FOLDED(low, by[0], by[1], _mm512_shuffle_ps, 0x88, 0xdd);
    FOLDED(high, by[2], by[2], _mm512_shuffle_ps, 0x88, 0xdd);
    FOLDED(all, low, high, _mm512_shuffle_f32x4, 0x88, 0xdd);
#undef FOLDED
    const ints order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 8, 12, 9, 13);
    return _mm512_permutexvar_ps(order, all);
}
#endif

/* Sums of up to GROUP outputs to y. */
INLINE void keep(const plain *w, const float *sums, int64_t rows, int64_t output, int64_t count,
                 void *y, int type) {
    float bias[LANES] = {0};
    if (w->bias) read_floats(bias, w->bias, output, count, type);
    for (int64_t r = 0; r < rows; r++, sums += GROUP * LANES) {
        const int64_t place = r * w->outputs + output;
#if WIDE_TILES
        const floats found = _mm512_add_ps(added_up(sums), load_floats(bias));
        const __mmask16 there = (__mmask16)((1 << count) - 1);
        const __m256i rounded = type == BF16 ? rounded_bfloat16s(found)
                                             : _mm512_cvtps_ph(found, _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16((uint16_t *)y + place, there, rounded);
#else
        float found[GROUP];
        for (int64_t n = 0; n < GROUP; n += 4) {
            floats of[4];
            UNROLLED(i, 4) of[i] = load_floats(sums + (n + i) * LANES);
            _mm_storeu_ps(found + n, sums_of_four(of[0], of[1], of[2], of[3]));
        }
        for (int64_t n = 0; n < count; n++) found[n] += bias[n];
        write_floats(y, place, found, count, type);
#endif
    }
}

/* Rows by the outputs from `output` up to `last`, N at a time. */
INLINE void by_groups(const plain *w, const float *x, int64_t stride, int64_t rows, int64_t output,
                      int64_t last, void *y, const int N, const int type) {
    _Alignas(64) float sums[ROWS * GROUP * LANES];
    /* Inputs that all outputs of a group use before the next ones: those of 8 or 16 rows stay in the
     * first cache. */
    const int64_t piece = rows <= (WIDE_TILES ? 4 : 1) ? w->inputs : rows > 8 ? 512 : 1024;
    for (int64_t count; output < last; output += count) {
        count = least(GROUP, last - output);
        for (int64_t k = 0; k < w->inputs; k += piece) {
            const span of = {k, least(k + piece, w->inputs)};
            int64_t n = 0;
            for (; n + N <= count; n += N)
                by_rows(w, output + n, x, stride, rows, of, sums + n * LANES, N, type);
            for (; n < count; n++)
                by_rows(w, output + n, x, stride, rows, of, sums + n * LANES, 1, type);
        }
        keep(w, sums, rows, output, count, y, type);
    }
}

static void share(const plain *w, const void *x, int64_t stride, int64_t rows, int64_t first,
                  int64_t last, void *y, float *scratch, const int type) {
    for (int64_t row = 0; row < rows; row++) widen_row(w, x, row, scratch + row * stride, type);
#define BY_GROUPS(N)                                                                   \
    (type == BF16 ? by_groups(w, scratch, stride, rows, first, last, y, N, BF16)       \
                  : by_groups(w, scratch, stride, rows, first, last, y, N, F16))
#if WIDE_TILES
    /* One row waits for memory alone, which one output after the other is read fastest. */
    rows > 4 ? BY_GROUPS(3) : rows > 1 ? BY_GROUPS(4) : BY_GROUPS(1);
#else /* too few registers for several rows by four */
    rows > 1 ? BY_GROUPS(2) : BY_GROUPS(4);
#endif
}

/* y [rows, outputs] = x [rows, inputs] @ w^T + bias, all of number format `type`, BF16 or F16;
 * scratch float32 [threads][at most ROWS, inputs filled up to a whole step + LANES]: threads that
 * shared it would wait for each other's caches. */
void native_plain_product(const void *weight, int64_t outputs, int64_t inputs, int64_t apart,
                          const void *bias, const void *x, void *y, int64_t rows, int32_t type,
                          float *scratch, int32_t threads) {
    const plain told = {outputs, inputs, apart, weight, bias}, *w = &told;
    const int64_t stride = (inputs + TOGETHER - 1) / TOGETHER * TOGETHER + LANES;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int32_t thread = 0; thread < threads; thread++) {
        const int64_t first = outputs * thread / threads, last = outputs * (thread + 1) / threads;
        float *own = scratch + thread * least(rows, ROWS) * stride;
        for (int64_t row = 0; row < rows && first < last; row += ROWS)
            share(w, (const uint16_t *)x + row * inputs, stride, least(ROWS, rows - row), first, last,
                  (uint16_t *)y + row * outputs, own, type);
    }
}
