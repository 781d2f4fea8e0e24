/* Attention of many tokens over the pages of a KV cache, in tiles: what attention.c computes, with
 * products of bfloat16.
 *
 * Keys and values are first arranged as tiles want them: keys [keys][key_dim], values transposed. A
 * block of 32 rows of queries then passes over them, KEYS at a time, and keeps the largest score,
 * the sum of the weights and the weighted sum of the values (FlashAttention, arXiv 2205.14135). Keys
 * that none of its rows sees are skipped. Scores lie as [keys][rows]: a vector holds 16 rows, and each
 * lane computes the softmax of its row.
 */
#include "job.h"
#include "tiles.h"

#if TILES

#define BLOCK 32 /* rows of queries */
#define KEYS 128 /* at a time */
#define UNSEEN -3e38f
#define LOWEST -1e30f /* of a row that has seen nothing yet: above UNSEEN */
#define LOG2_E 1.44269504f

/* Where the arranged keys and values of a request and a KV head begin, and which they are. */
typedef struct {
    int64_t start, tiles; /* position of the first key, a multiple of 32; tiles of 32 keys */
    uint16_t *keys;       /* [32 * tiles][key_width] */
    uint16_t *values;     /* [tiles][value_dim / 16][16][32 keys] */
} arranged;

INLINE int64_t key_width(const pages *p) { return (p->keys.width + 31) / 32 * 32; }

/* of `head`, the number of those that are arranged at a time, from 0 */
static arranged arranged_of(const job *j, const int64_t *tiles_before, uint16_t *all,
                            int64_t request, int64_t head) {
    const pages *p = j->pages;
    const int64_t wide = key_width(p) + p->values.width, total = tiles_before[j->step->requests];
    const int64_t position = j->step->lengths[request] - j->step->queries[request];
    arranged to;
    to.start = first_seen(j, position) / 32 * 32;
    to.tiles = tiles_before[request + 1] - tiles_before[request];
    to.keys = all + (head * total + tiles_before[request]) * 32 * wide;
    to.values = to.keys + to.tiles * 32 * key_width(p);
    return to;
}

/* Of a tile of 32 keys the rows of the pages from number `first` to before `end`; the others are not
 * there, or nobody sees them, and what lies in their place may be anything. */
typedef struct {
    int64_t first, end, rows[32];
    float scales[32];
} tile_rows;

static tile_rows rows_of(const job *j, const arranged *to, int64_t request, int64_t head,
                         int64_t tile, const stored *of) {
    const pages *p = j->pages;
    const step *s = j->step;
    const int32_t *table = s->tables + s->table_starts[request];
    const int64_t size = p->block_size, start = to->start + 32 * tile;
    tile_rows found;
    found.first = most(0, first_seen(j, s->lengths[request] - s->queries[request]) - start);
    found.end = least(32, s->lengths[request] - start);
    for (int64_t k = found.first; k < found.end; k++)
        found.rows[k] =
            (table[(start + k) / size] * p->kv_heads + head) * size + (start + k) % size;
    if (of->scales)
        read_scales(found.scales + found.first, of, found.rows + found.first,
                    found.end - found.first);
    return found;
}

/* Elements `d` to `d` + 16 of row `k` of a tile as bfloat16, one in each lane. */
INLINE ints load_bfloat16s(const stored *of, const tile_rows *rows, int64_t k, int64_t d,
                           const int kind) {
    if (k < rows->first || k >= rows->end || d >= of->width) return no_ints();
    const int64_t place = rows->rows[k] * of->width + d;
    if (kind == BF16)
        return _mm512_cvtepu16_epi32(
            _mm256_loadu_si256((const __m256i *)((const uint16_t *)of->elements + place)));
    floats wide = load_stored(of->elements, place, kind);
    if (of->scales) wide = scaled(wide, splat_float(rows->scales[k]));
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(wide));
}

INLINE void arrange_keys(const stored *of, const tile_rows *rows, int64_t wide, uint16_t *to,
                         const int kind) {
    for (int64_t k = 0; k < 32; k++)
        for (int64_t d = 0; d < wide; d += 16, to += 16)
            _mm256_storeu_si256((__m256i *)to,
                                _mm512_cvtepi32_epi16(load_bfloat16s(of, rows, k, d, kind)));
}

INLINE void arrange_values(const stored *of, const tile_rows *rows, uint16_t *to, const int kind) {
    for (int64_t d = 0; d < of->width; d += 16, to += 512) {
        bytes pairs[16];
        UNROLLED(n, 16) {
            const ints first = load_bfloat16s(of, rows, 2 * n, d, kind);
            const ints second = load_bfloat16s(of, rows, 2 * n + 1, d, kind);
            pairs[n] = _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
        }
        transpose(pairs);
        UNROLLED(n, 16) store_bytes((uint8_t *)(to + 32 * n), pairs[n]);
    }
}

static void arrange(const job *j, const arranged *to, int64_t request, int64_t head, int64_t tile) {
    const stored *keys = &j->pages->keys, *values = &j->pages->values;
    const int64_t wide = key_width(j->pages);
    tile_rows rows = rows_of(j, to, request, head, tile, keys);
    int kind = keys->kind;
#define ARRANGE_KEYS(KIND) arrange_keys(keys, &rows, wide, to->keys + 32 * tile * wide, KIND)
    BY_KIND(ARRANGE_KEYS);
    rows = rows_of(j, to, request, head, tile, values);
    kind = values->kind;
#define ARRANGE_VALUES(KIND) \
    arrange_values(values, &rows, to->values + 32 * tile * values->width, KIND)
    BY_KIND(ARRANGE_VALUES);
}

/* 2^x for x up to 0 (Cephes' exp2f); 0 below what float32 has. */
INLINE floats power_of_two(floats x) {
    const floats whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
    const floats rest = less(x, whole);
    floats sum = splat_float(1.535336188319500e-4f);
    sum = _mm512_fmadd_ps(sum, rest, splat_float(1.339887440266574e-3f));
    sum = _mm512_fmadd_ps(sum, rest, splat_float(9.618437357674640e-3f));
    sum = _mm512_fmadd_ps(sum, rest, splat_float(5.550332471162809e-2f));
    sum = _mm512_fmadd_ps(sum, rest, splat_float(2.402264791363012e-1f));
    sum = _mm512_fmadd_ps(sum, rest, splat_float(6.931472028550421e-1f));
    sum = _mm512_fmadd_ps(sum, rest, splat_float(1.0f));
    return _mm512_scalef_ps(sum, whole);
}

/* A block of rows of one request and KV head: row r is token r / group of the request. */
typedef struct {
    int64_t rows; /* that there are */
    int32_t last_key[BLOCK], first_key[BLOCK]; /* positions that a row sees, both with it */
    const uint16_t *q[BLOCK];
    int64_t out[BLOCK]; /* rows of y [.., value_dim] */
    uint16_t queries[2 * (WIDEST / 32) * 512]; /* [2][key_width / 32][16 pairs][16 rows][2] */
    float scores[KEYS * BLOCK], sums[WIDEST * BLOCK]; /* [keys][rows], [value_dim][rows] */
    uint16_t weights[KEYS * BLOCK];                   /* [2][KEYS / 2][16 rows][2] */
    floats largest[2], total[2];
} block;

static void begin_block(const job *j, block *b, int64_t request, int64_t head, int64_t number) {
    const step *s = j->step;
    const int64_t position = s->lengths[request] - s->queries[request], width = j->pages->keys.width;
    const int64_t group = j->heads / j->pages->kv_heads, first = number * BLOCK;
    b->rows = least(s->queries[request] * group - first, BLOCK);
    for (int64_t r = 0; r < BLOCK; r++) { /* more than there are: the last one again */
        const int64_t row = first + least(r, b->rows - 1), token = row / group;
        const int64_t head_of = head * group + row % group;
        const int64_t place = s->first_rows[request] + token;
        b->last_key[r] = (int32_t)(position + token);
        b->first_key[r] = (int32_t)first_seen(j, position + token);
        b->q[r] = (const uint16_t *)j->q + place * j->token_apart + head_of * j->head_apart;
        b->out[r] = place * j->heads + head_of;
    }
    uint16_t *to = b->queries;
    for (int half = 0; half < 2; half++)
        for (int64_t d = 0; d < width; d += 32, to += 512) {
            const __mmask32 there = width - d >= 32 ? 0xffffffff : 0xffff;
            bytes pairs[16];
            for (int r = 0; r < 16; r++)
                pairs[r] = _mm512_maskz_loadu_epi16(there, b->q[16 * half + r] + d);
            transpose(pairs);
            for (int n = 0; n < 16; n++) store_bytes((uint8_t *)(to + 32 * n), pairs[n]);
        }
    for (int half = 0; half < 2; half++)
        b->largest[half] = splat_float(LOWEST), b->total[half] = no_floats();
}

/* scores of `tiles` tiles of 32 keys from tile `tile` on, for R halves of the block. */
INLINE void score_tiles(const job *j, block *b, const arranged *k, int64_t tile, int64_t tiles,
                        const int R) {
    const int64_t wide = key_width(j->pages);
    const operand queries = {b->queries, wide / 32 * 1024, 64, 1024, 0};
    for (int64_t t = 0; t < tiles; t++) {
        const operand keys = {k->keys + 32 * (tile + t) * wide, 32 * wide, 2 * wide, 64, 0};
        const tile_sums to = {b->scores + 32 * t * BLOCK, 64 * BLOCK, 64, 4 * BLOCK};
        multiply_tiles(keys, queries, wide / 32, 1, to, NULL, 2, R, BFLOAT16S);
    }
}

/* Scores of `count` keys from position `start` on: as powers of two, and those unseen as UNSEEN. */
static void see(const job *j, block *b, int half, int64_t start, int64_t count) {
    const float scaling = j->softcap > 0 ? j->scaling : j->scaling * LOG2_E;
    const ints last = load_ints(b->last_key + 16 * half), first = load_ints(b->first_key + 16 * half);
    const floats cap = splat_float(j->softcap * LOG2_E);
    const floats steep = splat_float(-2.0f * LOG2_E / (j->softcap > 0 ? j->softcap : 1.0f));
    for (int64_t k = 0; k < count; k++) {
        float *score = b->scores + k * BLOCK + 16 * half;
        floats s = scaled(load_floats(score), splat_float(scaling));
        if (j->softcap > 0) { /* the hyperbolic tangent of |s|, with its sign */
            const floats e = power_of_two(scaled(_mm512_abs_ps(s), steep));
            const floats one = splat_float(1.0f);
            const floats size = _mm512_div_ps(less(one, e), _mm512_add_ps(one, e));
            const __mmask16 below = _mm512_cmp_ps_mask(s, no_floats(), _CMP_LT_OQ);
            s = scaled(_mm512_mask_sub_ps(size, below, no_floats(), size), cap);
        }
        const ints position = splat((int32_t)(start + k));
        const __mmask16 seen = _mm512_cmp_epi32_mask(position, last, _MM_CMPINT_LE) &
                               _mm512_cmp_epi32_mask(position, first, _MM_CMPINT_NLT);
        store_floats(score, _mm512_mask_blend_ps(seen, splat_float(UNSEEN), s));
    }
}

/* Weights of `count` keys; sums that were found before are made to fit them. */
INLINE void weigh_tiles(block *b, int half, int64_t count, float scaling, int64_t value_dim,
                        int is_first) {
    static const uint16_t order[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const bytes by_row = load_bytes((const uint8_t *)order);
    const float *scores = b->scores + 16 * half;
    floats peaks[4];
    UNROLLED(n, 4) peaks[n] = load_floats(scores + n * BLOCK);
    for (int64_t k = 4; k < count; k += 4)
        UNROLLED(n, 4) peaks[n] = larger(peaks[n], load_floats(scores + (k + n) * BLOCK));
    const floats found = larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3]));
    const floats each = splat_float(scaling);
    const floats largest = larger(scaled(found, each), b->largest[half]);
    const floats before = power_of_two(less(b->largest[half], largest));
    floats total[2] = {no_floats(), no_floats()};
    uint16_t *to = b->weights + half * KEYS * 16;
    for (int64_t k = 0; k < count; k += 2, to += 32) {
        floats weight[2];
        UNROLLED(n, 2) {
            const floats score = load_floats(scores + (k + n) * BLOCK);
            weight[n] = power_of_two(_mm512_fmsub_ps(score, each, largest));
            total[n] = _mm512_add_ps(total[n], weight[n]);
        }
        const bytes both = (bytes)_mm512_cvtne2ps_pbh(weight[1], weight[0]);
        store_bytes((uint8_t *)to, _mm512_permutexvar_epi16(by_row, both));
    }
    b->total[half] = _mm512_fmadd_ps(b->total[half], before, _mm512_add_ps(total[0], total[1]));
    if (!is_first && _mm512_cmp_ps_mask(b->largest[half], largest, _CMP_NEQ_OQ))
        for (int64_t d = 0; d < value_dim; d++) {
            float *sum = b->sums + d * BLOCK + 16 * half;
            store_floats(sum, scaled(load_floats(sum), before));
        }
    b->largest[half] = largest;
}

/* The values of those keys, weighed, to the sums of N tiles of 16 elements from `d` on. */
INLINE void sum_tiles(block *b, const uint16_t *values, int64_t value_dim, int64_t d, int64_t tiles,
                      int is_first, const int N, const int R) {
    const operand from = {values + d / 16 * 512, 1024, 64, 64 * value_dim, 0};
    const operand weights = {b->weights, 32 * KEYS, 64, 1024, 0};
    const tile_sums to = {b->sums + d * BLOCK, 64 * BLOCK, 64, 4 * BLOCK};
    multiply_tiles(from, weights, tiles, is_first, to, NULL, N, R, BFLOAT16S);
}

INLINE void pass(const job *j, block *b, const arranged *k, const int R) {
    const int64_t value_dim = j->pages->values.width, last_row = least(b->rows, BLOCK) - 1;
    int32_t first = b->first_key[0], full_from = b->first_key[last_row];
    const int64_t from = (first - k->start) / 32, end = (b->last_key[last_row] - k->start) / 32 + 1;
    for (int64_t tile = from; tile < end; tile += KEYS / 32) {
        const int64_t tiles = least(KEYS / 32, end - tile), start = k->start + 32 * tile;
        const uint16_t *values = k->values + 32 * tile * value_dim;
        const int is_first = tile == from;
        const int is_whole = j->softcap <= 0 && start >= full_from &&
                             start + 32 * tiles - 1 <= b->last_key[0];
        score_tiles(j, b, k, tile, tiles, R);
        UNROLLED(half, R) {
            if (!is_whole) see(j, b, half, start, 32 * tiles);
            weigh_tiles(b, half, 32 * tiles, is_whole ? j->scaling * LOG2_E : 1.0f, value_dim,
                        is_first);
        }
        int64_t d = 0;
        for (; d + 32 <= value_dim; d += 32)
            sum_tiles(b, values, value_dim, d, tiles, is_first, 2, R);
        if (d < value_dim) sum_tiles(b, values, value_dim, d, tiles, is_first, 1, R);
    }
}

static void end_block(const job *j, block *b) {
    const int64_t width = j->pages->values.width;
    for (int64_t half = 0; 16 * half < b->rows; half++) {
        floats part = splat_float(1.0f), total = b->total[half];
        if (j->sinks) {
            float sinks[16];
            for (int64_t r = 0; r < 16; r++)
                sinks[r] = j->sinks[b->out[16 * half + r] % j->heads] * LOG2_E;
            const floats sink = load_floats(sinks), largest = larger(sink, b->largest[half]);
            part = power_of_two(less(b->largest[half], largest));
            total = _mm512_fmadd_ps(total, part, power_of_two(less(sink, largest)));
        }
        part = _mm512_div_ps(part, total);
        for (int64_t d = 0; d < width; d += 16) {
            bytes by_row[16];
            UNROLLED(n, 16) {
                const float *sum = b->sums + (d + n) * BLOCK + 16 * half;
                by_row[n] = _mm512_castps_si512(scaled(load_floats(sum), part));
            }
            transpose(by_row);
            for (int64_t r = 0; r < 16 && 16 * half + r < b->rows; r++)
                write_lanes(j->y, b->out[16 * half + r] * width + d, 16,
                            _mm512_castsi512_ps(by_row[r]), j->type);
        }
    }
}

#endif

/* As native_attention, for q of bfloat16 and y of number format `type`. scratch: int64 [requests + 1],
 * filled up to 64 bytes, and bfloat16 [at_once][keys of all requests, filled up to tiles of
 * 32][key_width + value_dim], for `at_once` KV heads at a time. */
void native_prompt_attention(const pages *pages, const step *step, const void *q,
                             int64_t token_apart, int64_t head_apart, int64_t heads, int64_t window,
                             float scaling, float softcap, const float *sinks, int64_t chunk,
                             void *y, int32_t type, void *scratch, int64_t at_once,
                             int32_t threads) {
#if TILES
    const job told = {pages, step, q, token_apart, head_apart, heads, window, chunk, scaling,
                      softcap, sinks, y, type, 0}, *j = &told;
    int64_t *tiles_before = scratch;
    tiles_before[0] = 0;
    for (int64_t i = 0; i < step->requests; i++) {
        const int64_t position = step->lengths[i] - step->queries[i];
        const int64_t count = step->lengths[i] - first_seen(j, position) / 32 * 32;
        tiles_before[i + 1] = tiles_before[i] + (count + 31) / 32;
    }
    uint16_t *all = (uint16_t *)scratch + ((step->requests + 1) * 8 + 63) / 64 * 32;
    const int64_t group = heads / pages->kv_heads;
#pragma omp parallel num_threads(threads)
    {
        const tile_shapes before = begin_tiles(64);
        for (int64_t head = 0; head < pages->kv_heads; head += at_once) {
            const int64_t count = least(at_once, pages->kv_heads - head);
            for (int64_t i = 0; i < step->requests; i++) {
                const int64_t tiles = tiles_before[i + 1] - tiles_before[i];
#pragma omp for schedule(static) nowait
                for (int64_t n = 0; n < count * tiles; n++) {
                    const arranged to = arranged_of(j, tiles_before, all, i, n / tiles);
                    arrange(j, &to, i, head + n / tiles, n % tiles);
                }
            }
#pragma omp barrier
            for (int64_t i = 0; i < step->requests; i++) {
                const int64_t blocks = (step->queries[i] * group + BLOCK - 1) / BLOCK;
#pragma omp for schedule(dynamic) nowait
                for (int64_t n = 0; n < count * blocks; n++) { /* the longest first */
                    const int64_t one = n % count, number = blocks - 1 - n / count;
                    const arranged from = arranged_of(j, tiles_before, all, i, one);
                    _Alignas(64) block b;
                    begin_block(j, &b, i, head + one, number);
                    if (b.rows > 16) pass(j, &b, &from, 2);
                    else pass(j, &b, &from, 1);
                    end_block(j, &b);
                }
            }
#pragma omp barrier
        }
        end_tiles(&before);
    }
#endif
}
