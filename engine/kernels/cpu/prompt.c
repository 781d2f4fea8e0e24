/* Attention of many tokens over the pages of a KV cache, in tiles: what attention.c computes, with
 * products of bfloat16, or of float32 where vectors multiply that faster.
 *
 * A thread takes some blocks of 32 rows of queries of a request and KV head. KEYS keys and values at
 * a time are arranged as tiles want them, values transposed, and every block passes over them while
 * they are in the core's cache. A block keeps the largest score, the sum of the weights and the
 * weighted sum of the values (FlashAttention, arXiv 2205.14135). Keys that none of its rows sees are
 * skipped. Scores lie as [keys][rows]: a vector holds 16 rows, and each lane computes the softmax of
 * its row. KEYS are counted from the beginning of the sequence: what a row comes to does not depend
 * on the rows beside it.
 */
#include <omp.h>

#include "job.h"
#include "tiles.h"

#if TILES

#define BLOCK 32 /* rows of queries */
#define KEYS 128 /* at a time */
#define BLOCKS 16 /* at most, of a thread at a time */
#define UNSEEN -3e38f
#define LOWEST -1e30f /* of a row that has seen nothing yet: above UNSEEN */
#define LOG2_E 1.44269504f

/* A thread's own place for KEYS arranged keys and values, and for a block that passes over them. */
typedef struct {
    element *keys;    /* [KEYS / 16][key_width / STEP][16][STEP] */
    element *values;  /* [KEYS / STEP][value_dim / 16][16][STEP keys] */
    float *scores;    /* [KEYS][rows] */
    element *weights; /* [2][KEYS / EACH][16 rows][EACH] */
} room;

INLINE int64_t key_width(const pages *p) { return (p->keys.width + 31) / 32 * 32; }

/* Of a tile of 32 keys the rows of the pages from number `first` to before `end`; the others are not
 * there, or nobody sees them, and what lies in their place may be anything. */
typedef struct {
    int64_t first, end, rows[32];
    float scales[32];
} tile_rows;

static tile_rows rows_of(const job *j, int64_t request, int64_t head, int64_t start,
                         const stored *of) {
    const pages *p = j->pages;
    const step *s = j->step;
    const int32_t *table = s->tables + s->table_starts[request];
    const int64_t size = p->block_size;
    tile_rows found;
    const int64_t first = first_seen(j, s->lengths[request] - s->queries[request]);
    found.first = least(32, most(0, first - start));
    found.end = most(found.first, least(32, s->lengths[request] - start));
    int64_t number = (start + found.first) / size, offset = (start + found.first) % size;
    for (int64_t k = found.first; k < found.end; k++) {
        found.rows[k] = (table[number] * p->kv_heads + head) * size + offset;
        if (++offset == size) offset = 0, number++;
    }
    if (of->scales)
        read_scales(found.scales + found.first, of, found.rows + found.first,
                    found.end - found.first);
    return found;
}

/* Numbers `d` to `d` + 16 of row `k` of a tile as an element in each lane. */
INLINE ints load_elements(const stored *of, const tile_rows *rows, int64_t k, int64_t d,
                          const int kind) {
    if (k < rows->first || k >= rows->end || d >= of->width) return no_ints();
    const int64_t place = rows->rows[k] * of->width + d;
    if (kind == BF16 && !FLOATS)
        return _mm512_cvtepu16_epi32(
            _mm256_loadu_si256((const __m256i *)((const uint16_t *)of->elements + place)));
    floats wide = load_stored(of->elements, place, kind);
    if (of->scales) wide = scaled(wide, splat_float(rows->scales[k]));
    return FLOATS ? (ints)wide : _mm512_cvtepu16_epi32(to_bfloat16s(wide));
}

INLINE void arrange_keys(const stored *of, const tile_rows *rows, int64_t wide, element *to,
                         const int kind) {
    for (int64_t k = 0; k < 32; k++) {
        element *const first = to + k / 16 * 16 * wide + k % 16 * STEP;
        if (kind == BF16 && k >= rows->first && k < rows->end && of->width % 32 == 0) {
            const uint16_t *from = (const uint16_t *)of->elements + rows->rows[k] * wide;
            for (int64_t d = 0; d < wide; d += STEP)
                store_bytes((uint8_t *)(first + 16 * d), load_step(from + d));
            continue;
        }
        for (int64_t d = 0; d < wide; d += 16) {
            const ints found = load_elements(of, rows, k, d, kind);
            element *place = first + d / STEP * STEP * 16 + d % STEP;
            if (FLOATS) store_ints((int32_t *)place, found);
            else _mm256_storeu_si256((__m256i *)place, _mm512_cvtepi32_epi16(found));
        }
    }
}

INLINE void arrange_values(const stored *of, const tile_rows *rows, element *to, const int kind) {
    for (int64_t k = 0; k < 32; k += STEP)
        for (int64_t d = 0; d < of->width; d += 16, to += 16 * STEP) {
            bytes lanes[16];
            UNROLLED(n, 16) {
                lanes[n] = load_elements(of, rows, k + EACH * n, d, kind);
                if (!FLOATS) {
                    const ints second = load_elements(of, rows, k + 2 * n + 1, d, kind);
                    lanes[n] = _mm512_or_si512(lanes[n], _mm512_slli_epi32(second, 16));
                }
            }
            transpose(lanes);
            UNROLLED(n, 16) store_bytes((uint8_t *)(to + STEP * n), lanes[n]);
        }
}

/* `tiles` tiles of 32 keys and values from position `start` on. */
static void arrange(const job *j, const room *to, int64_t request, int64_t head, int64_t start,
                    int64_t tiles) {
    const stored *keys = &j->pages->keys, *values = &j->pages->values;
    const int64_t wide = key_width(j->pages);
    for (int64_t tile = 0; tile < tiles; tile++) {
        tile_rows rows = rows_of(j, request, head, start + 32 * tile, keys);
        int kind = keys->kind;
#define ARRANGE_KEYS(KIND) arrange_keys(keys, &rows, wide, to->keys + 32 * tile * wide, KIND)
        BY_KIND(ARRANGE_KEYS);
        rows = rows_of(j, request, head, start + 32 * tile, values);
        kind = values->kind;
#define ARRANGE_VALUES(KIND) \
    arrange_values(values, &rows, to->values + 32 * tile * values->width, KIND)
        BY_KIND(ARRANGE_VALUES);
    }
}

/* Keys and values that are arranged next, as bytes that lie one after the other. They are brought to
 * the second cache beside the products: all at once, each line would be waited for. */
typedef struct {
    const uint8_t *at[2 * KEYS + 1], *end[2 * KEYS];
    int64_t count, run, rate; /* rate: lines beside each product */
    const uint8_t *line;      /* of the run */
} coming;

static void look_ahead(const job *j, int64_t request, int64_t head, int64_t start, int64_t tiles,
                       int64_t products, coming *to) {
    const stored *both[2] = {&j->pages->keys, &j->pages->values};
    int64_t lines = 0;
    to->count = to->run = 0;
    for (int of = 0; of < 2; of++) {
        const int64_t bytes = both[of]->width * stored_bytes(both[of]->kind);
        for (int64_t tile = 0; tile < tiles; tile++) {
            const tile_rows rows = rows_of(j, request, head, start + 32 * tile, both[of]);
            for (int64_t k = rows.first; k < rows.end; k++, lines += (bytes + 63) / 64) {
                const uint8_t *from = (const uint8_t *)both[of]->elements + rows.rows[k] * bytes;
                if (to->count == 0 || to->end[to->count - 1] != from) to->at[to->count++] = from;
                to->end[to->count - 1] = from + bytes;
            }
        }
    }
    to->line = to->at[0];
    to->rate = (lines + products - 1) / products;
}

INLINE void bring_lines(coming *next, int64_t count) {
    for (; count > 0 && next->run < next->count; count--) {
        _mm_prefetch((const char *)next->line, _MM_HINT_T1);
        next->line += 64;
        if (next->line >= next->end[next->run]) next->line = next->at[++next->run];
    }
}

INLINE void bring_some(void *with, int64_t step, int n) {
    coming *next = with;
    bring_lines(next, next->rate);
}

/* 2^x for x up to 0, within 2.8e-6 of it (weights are rounded to 3.9e-3); 0 below 2^-64, which is nothing
 * beside the largest weight, 1: for one below 2^-126 the processor takes 40 times as long. */
INLINE floats power_of_two(floats x) {
    const floats whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
    const floats rest = less(x, whole);
    floats sum = splat_float(9.582847863e-3f);
    sum = product_plus(sum, rest, splat_float(5.590643261e-2f));
    sum = product_plus(sum, rest, splat_float(2.402409877e-1f));
    sum = product_plus(sum, rest, splat_float(6.931241920e-1f));
    sum = product_plus(sum, rest, splat_float(1.0f));
    const __mmask16 counts = _mm512_cmp_ps_mask(whole, splat_float(-64.0f), _CMP_NLT_UQ); /* or NaN */
    return _mm512_maskz_scalef_ps(counts, sum, whole);
}

/* A block of rows of one request and KV head: row r is token r / group of the request. */
typedef struct {
    int64_t rows; /* that there are */
    int32_t last_key[BLOCK], first_key[BLOCK]; /* positions that a row sees, both with it */
    const uint16_t *q[BLOCK];
    int64_t out[BLOCK]; /* rows of y [.., value_dim] */
    element *queries; /* [2][key_width / STEP][16][16 rows][EACH] */
    float *sums;      /* [value_dim][rows] */
    floats largest[2], total[2];
    int is_begun;
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
    element *to = b->queries;
    for (int half = 0; half < 2; half++)
        for (int64_t d = 0; d < key_width(j->pages); d += STEP, to += 16 * STEP) {
            const __mmask32 there = width - d >= 32 ? 0xffffffff : width > d ? 0xffff : 0;
            bytes lanes[16];
            for (int r = 0; r < 16; r++) {
                const bytes some = _mm512_maskz_loadu_epi16(there, b->q[16 * half + r] + d);
                lanes[r] = FLOATS ? _mm512_slli_epi32(_mm512_cvtepu16_epi32(
                                        _mm512_castsi512_si256(some)), 16)
                                  : some;
            }
            transpose(lanes);
            for (int n = 0; n < 16; n++) store_bytes((uint8_t *)(to + STEP * n), lanes[n]);
        }
    for (int half = 0; half < 2; half++)
        b->largest[half] = splat_float(LOWEST), b->total[half] = no_floats();
    b->is_begun = 0;
}

/* scores of `tiles` tiles of 32 keys, for R halves of the block. */
INLINE void score_tiles(const job *j, const block *b, const room *k, int64_t tiles, coming *next,
                        const int R) {
    const int64_t wide = key_width(j->pages);
    const operand queries = {b->queries, wide / STEP * 1024, 64, 1024, 0};
    for (int64_t t = 0; t < tiles; t++) {
        const operand keys = {k->keys + 32 * t * wide, wide / STEP * 1024, 64, 1024, 0};
        const tile_sums to = {k->scores + 32 * t * BLOCK, 64 * BLOCK, 64, 4 * BLOCK};
        multiply_tiles(keys, queries, wide / STEP, 1, to, bring_some, next, 2, R, NUMBERS);
    }
}

/* Scores of `count` keys from position `start` on: as powers of two, and those unseen as UNSEEN. */
static void see(const job *j, const block *b, const room *in, int half, int64_t start,
                int64_t count) {
    const float scaling = j->softcap > 0 ? j->scaling : j->scaling * LOG2_E;
    const ints last = load_ints(b->last_key + 16 * half), first = load_ints(b->first_key + 16 * half);
    const floats cap = splat_float(j->softcap * LOG2_E);
    const floats steep = splat_float(-2.0f * LOG2_E / (j->softcap > 0 ? j->softcap : 1.0f));
    for (int64_t k = 0; k < count; k++) {
        float *score = in->scores + k * BLOCK + 16 * half;
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
INLINE void weigh_tiles(block *b, const room *in, int half, int64_t count, float scaling,
                        int64_t value_dim, coming *next) {
    const float *scores = in->scores + 16 * half;
    floats peaks[4];
    UNROLLED(n, 4) peaks[n] = load_floats(scores + n * BLOCK);
    for (int64_t k = 4; k < count; k += 4)
        UNROLLED(n, 4) peaks[n] = larger(peaks[n], load_floats(scores + (k + n) * BLOCK));
    const floats found = larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3]));
    const floats each = splat_float(scaling);
    const floats largest = larger(scaled(found, each), b->largest[half]);
    const floats before = power_of_two(less(b->largest[half], largest));
    floats total[2] = {no_floats(), no_floats()};
    element *to = in->weights + half * KEYS * 16;
    for (int64_t k = 0; k < count; k += 2, to += 32) {
        bring_lines(next, next->rate);
        floats weight[2];
        UNROLLED(n, 2) {
            const floats score = load_floats(scores + (k + n) * BLOCK);
            weight[n] = power_of_two(_mm512_fmsub_ps(score, each, largest));
            total[n] = _mm512_add_ps(total[n], weight[n]);
        }
        store_inputs(to, weight[0], weight[1]);
    }
    b->total[half] = _mm512_fmadd_ps(b->total[half], before, _mm512_add_ps(total[0], total[1]));
    if (b->is_begun && _mm512_cmp_ps_mask(b->largest[half], largest, _CMP_NEQ_OQ))
        for (int64_t d = 0; d < value_dim; d++) {
            float *sum = b->sums + d * BLOCK + 16 * half;
            store_floats(sum, scaled(load_floats(sum), before));
        }
    b->largest[half] = largest;
}

/* The values of those keys, weighed, to the sums of N tiles of 16 elements from `d` on. */
INLINE void sum_tiles(block *b, const room *in, int64_t value_dim, int64_t d, int64_t tiles,
                      coming *next, const int N, const int R) {
    const operand from = {in->values + d * STEP, 1024, 64, 64 * value_dim, 0};
    const operand weights = {in->weights, 1024 * KEYS / STEP, 64, 1024, 0};
    const tile_sums to = {b->sums + d * BLOCK, 64 * BLOCK, 64, 4 * BLOCK};
    multiply_tiles(from, weights, tiles, !b->is_begun, to, bring_some, next, N, R,
                   NUMBERS);
}

/* A block over `count` arranged keys from position `start` on. */
INLINE void pass(const job *j, block *b, const room *in, int64_t start, int64_t count, coming *next,
                 const int R) {
    const int64_t value_dim = j->pages->values.width, last_row = b->rows - 1;
    count = least(count, (b->last_key[last_row] + 1 - start + 31) / 32 * 32);
    if (count <= 0 || b->first_key[0] >= start + count) return;
    const int is_whole = j->softcap <= 0 && start >= b->first_key[last_row] &&
                         start + count - 1 <= b->last_key[0];
    score_tiles(j, b, in, count / 32, next, R);
    UNROLLED(half, R) {
        if (!is_whole) see(j, b, in, half, start, count);
        weigh_tiles(b, in, half, count, is_whole ? j->scaling * LOG2_E : 1.0f, value_dim, next);
    }
    int64_t d = 0;
    for (; d + 32 <= value_dim; d += 32) sum_tiles(b, in, value_dim, d, count / STEP, next, 2, R);
    if (d < value_dim) sum_tiles(b, in, value_dim, d, count / STEP, next, 1, R);
    b->is_begun = 1;
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

/* `count` blocks of a request and KV head, from number `first` on. */
static void attend(const job *j, const room *in, block *blocks, int64_t request, int64_t head,
                   int64_t first, int64_t count) {
    for (int64_t n = 0; n < count; n++) begin_block(j, blocks + n, request, head, first + n);
    const block *last = blocks + count - 1;
    const int64_t end = last->last_key[last->rows - 1] + 1;
    int64_t start = blocks[0].first_key[0] / KEYS * KEYS;
    const int64_t width = key_width(j->pages) + j->pages->values.width;
    coming next;
    for (; start < end; start += KEYS) {
        const int64_t keys = least(KEYS, (end - start + 31) / 32 * 32), after = start + KEYS;
        arrange(j, in, request, head, start, keys / 32);
        next.count = next.run = 0;
        if (after < end) /* of a pair of tiles by one: two products */
            look_ahead(j, request, head, after, (least(KEYS, end - after) + 31) / 32,
                       count * (2 * (keys / 32) * (width / 32) + keys / 2), &next);
        for (int64_t n = 0; n < count; n++) {
            if (blocks[n].rows > 16) pass(j, blocks + n, in, start, keys, &next, 2);
            else pass(j, blocks + n, in, start, keys, &next, 1);
        }
        bring_lines(&next, INT64_MAX); /* not all blocks see all keys */
    }
    for (int64_t n = 0; n < count; n++) end_block(j, blocks + n);
}

#endif

/* As native_attention, for q of bfloat16 and y of number format `type`. scratch, for each thread:
 * elements [KEYS][key_width + value_dim], [KEYS][BLOCK] and float [KEYS][BLOCK], and for each of
 * BLOCKS blocks elements [BLOCK][key_width] and float [BLOCK][value_dim]. */
void native_prompt_attention(const pages *pages, const step *step, const void *q,
                             int64_t token_apart, int64_t head_apart, int64_t heads, int64_t window,
                             float scaling, float softcap, const float *sinks, int64_t chunk,
                             void *y, int32_t type, void *scratch, int32_t threads) {
#if TILES
    if (!step->requests) return;
    const job told = {pages, step, q, token_apart, head_apart, heads, window, chunk, scaling,
                      softcap, sinks, y, type, 0}, *j = &told;
    const int64_t group = heads / pages->kv_heads, key_dim = key_width(pages);
    const int64_t value_dim = pages->values.width, size = sizeof(element);
    const int64_t block_bytes = BLOCK * (size * key_dim + 4 * value_dim);
    const int64_t bytes =
        KEYS * (size * (key_dim + value_dim) + (size + 4) * BLOCK) + BLOCKS * block_bytes;
    int64_t all = 0;
    for (int64_t i = 0; i < step->requests; i++)
        all += (step->queries[i] * group + BLOCK - 1) / BLOCK * pages->kv_heads;
    const int64_t at_once = most(1, least(BLOCKS, all / (4 * threads)));
#pragma omp parallel num_threads(threads)
    {
        const tile_shapes before = begin_tiles(64);
        uint8_t *own = (uint8_t *)scratch + omp_get_thread_num() * bytes;
        room in = {.keys = (element *)own};
        in.values = in.keys + KEYS * key_dim;
        in.scores = (float *)(in.values + KEYS * value_dim);
        in.weights = (element *)(in.scores + KEYS * BLOCK);
        own = (uint8_t *)(in.weights + KEYS * BLOCK);
        _Alignas(64) block blocks[BLOCKS];
        for (int64_t n = 0; n < BLOCKS; n++, own += block_bytes) {
            blocks[n].sums = (float *)own;
            blocks[n].queries = (element *)(own + 4 * BLOCK * value_dim);
        }
        for (int64_t i = 0; i < step->requests; i++) {
            const int64_t number = (step->queries[i] * group + BLOCK - 1) / BLOCK;
            const int64_t parts = (number + at_once - 1) / at_once;
#pragma omp for schedule(dynamic) nowait
            for (int64_t n = 0; n < pages->kv_heads * parts; n++) { /* the longest first */
                const int64_t first = (parts - 1 - n / pages->kv_heads) * at_once;
                attend(j, &in, blocks, i, n % pages->kv_heads, first,
                       least(at_once, number - first));
            }
        }
        end_tiles(&before);
    }
#endif
}
