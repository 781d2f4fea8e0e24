/* Attention over the pages of a KV cache, read where they lie.
 *
 *   y[t, h] = sum over l of softmax(scaling * q[t, h] . key[l])[l] * value[l]
 *
 * over all keys l of the token's own sequence up to itself, or those within its window or chunk. The
 * query heads of a group read each key once. Everything is float32 inside and rounded once.
 *
 * A sequence is divided into parts of PART keys, counted from its beginning, which are computed by
 * themselves and joined in their order, by one thread or by several. So what a token comes to depends
 * on no other: not on those beside it in its request, nor on other requests, nor on threads.
 */
#include "job.h"

#define BLOCK 32 /* rows of queries that one thread takes */
#define ITEMS 4  /* of each thread: with fewer some threads wait for others */

/* Rows of one request and one KV head, up to BLOCK of them: row r is token r / group of the
 * request. */
typedef struct {
    int64_t request, head, group;
    int64_t first, rows; /* of the rows */
    int64_t position;    /* of the request's first token */
    int64_t first_part, parts;
} share;

static share share_of(const job *j, int64_t request, int64_t head, int64_t block) {
    const step *s = j->step;
    share of = {.request = request, .head = head, .group = j->heads / j->pages->kv_heads};
    of.first = block * BLOCK;
    of.rows = least(s->queries[request] * of.group - of.first, BLOCK);
    of.position = s->lengths[request] - s->queries[request];
    const int64_t first = of.position + of.first / of.group;
    const int64_t last = of.position + (of.first + of.rows - 1) / of.group;
    of.first_part = first_seen(j, first) / PART;
    of.parts = last / PART + 1 - of.first_part;
    return of;
}

INLINE int64_t token_of(const share *of, int64_t row) { return (of->first + row) / of->group; }
INLINE int64_t head_of(const share *of, int64_t row) {
    return of->head * of->group + (of->first + row) % of->group;
}
INLINE int64_t found_size(const job *j) { return 2 + j->pages->values.width; }
INLINE found *found_at(const job *j, float *all, int64_t number) {
    return (found *)(all + number * found_size(j));
}

/* Up to ROWS rows of a share, from `row` on, over the keys of the part that begins at `start`: to
 * `all` from row `number` on. What of `k` they see is written to it. */
static void attend_rows(const job *j, const share *of, keys *k, int64_t start, int64_t row,
                        int rows, float *all, int64_t number) {
    const pages *p = j->pages;
    const int64_t width = p->keys.width, place = j->step->first_rows[of->request];
    _Alignas(64) float q[ROWS * WIDEST], scores[ROWS * PART];
    int64_t first[ROWS], end[ROWS];
    float *to[ROWS];
    for (int r = 0; r < rows; r++) {
        const int64_t token = token_of(of, row + r), position = of->position + token - start;
        const int64_t from =
            (place + token) * j->token_apart + head_of(of, row + r) * j->head_apart;
        read_floats(q + r * width, j->q, from, width, j->type);
        for (int64_t d = 0; d < width; d++) q[r * width + d] *= j->scaling;
        first[r] = most(0, first_seen(j, position + start) - start);
        end[r] = most(0, least(position + 1, PART));
    }
    k->first = least(first[0], end[rows - 1]), k->end = end[rows - 1];
    score_rows(k, p, q, scores, rows);
    for (int r = 0; r < rows; r++) {
        found *const one = found_at(j, all, number + r);
        weigh(p, j->softcap, k, scores + r * PART, first[r], end[r], one);
        to[r] = one->sum;
    }
    sum_rows(k, p, scores, to, rows);
}

/* All rows of a share over one part: to `all` from row `number` on. */
static void attend_part(const job *j, const share *of, int64_t part, float *all, int64_t number) {
    const int64_t start = (of->first_part + part) * PART;
    const int64_t first = of->position + token_of(of, 0) - start;
    const int64_t last = of->position + token_of(of, of->rows - 1) - start;
    keys k;
    k.first = most(0, first_seen(j, first + start) - start), k.end = least(last + 1, PART);
    const int is_next = !j->is_split && part + 1 == of->parts && of->head + 1 < j->pages->kv_heads;
    k.beside = is_next ? j->pages->block_size : 0;
    find_keys(&k, j->pages, j->step->tables + j->step->table_starts[of->request], start, of->head);
    for (int64_t row = 0, rows; row < of->rows; row += rows) {
        const int64_t left = least(of->rows - row, MOST_ROWS);
        rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        attend_rows(j, of, &k, start, row, (int)rows, all, number + row);
    }
}

/* `to` becomes what its keys and those of `with`, which come after them, come to together. */
static void join(found *to, const found *with, int64_t width) {
    if (with->largest == -INFINITY && with->total == 0) return;
    if (to->largest == -INFINITY && to->total == 0) {
        memcpy(to, with, sizeof(float) * (2 + width));
        return;
    }
    const float largest = with->largest > to->largest ? with->largest : to->largest;
    const float ours = power_of(to->largest - largest), theirs = power_of(with->largest - largest);
    to->largest = largest;
    to->total = ours * to->total + theirs * with->total;
    for (int64_t d = 0; d < width; d++) to->sum[d] = ours * to->sum[d] + theirs * with->sum[d];
}

/* One row of y, of what all of its keys came to. */
static void finish(const job *j, const share *of, int64_t row, found *one) {
    const int64_t width = j->pages->values.width, head = head_of(of, row);
    const int64_t place = j->step->first_rows[of->request] + token_of(of, row);
    if (j->sinks) {
        const float sink = j->sinks[head], largest = sink > one->largest ? sink : one->largest;
        const float ours = power_of(one->largest - largest);
        one->total = ours * one->total + power_of(sink - largest);
        for (int64_t d = 0; d < width; d++) one->sum[d] *= ours;
    }
    for (int64_t d = 0; d < width; d++) one->sum[d] /= one->total;
    write_floats(j->y, (place * j->heads + head) * width, one->sum, width, j->type);
}

/* A share with all of its parts, one after the other. */
static void attend(const job *j, const share *of) {
    _Alignas(64) float here[2 * BLOCK * (2 + WIDEST)];
    attend_part(j, of, 0, here, 0);
    for (int64_t part = 1; part < of->parts; part++) {
        attend_part(j, of, part, here, BLOCK);
        for (int64_t row = 0; row < of->rows; row++)
            join(found_at(j, here, row), found_at(j, here, BLOCK + row), j->pages->values.width);
    }
    for (int64_t row = 0; row < of->rows; row++) finish(j, of, row, found_at(j, here, row));
}

/* A share whose parts were computed: those of part n from row `number` + n * rows of `all` on. */
static void join_parts(const job *j, const share *of, float *all, int64_t number) {
    for (int64_t row = 0; row < of->rows; row++) {
        found *const one = found_at(j, all, number + row);
        for (int64_t part = 1; part < of->parts; part++)
            join(one, found_at(j, all, number + part * of->rows + row), j->pages->values.width);
        finish(j, of, row, one);
    }
}

/* What one thread does at a time: a share, or one part of it. */
typedef struct {
    int64_t request, head, block, part;
    int64_t number; /* of the row of `all` where the share's first part is */
} item;

/* How many there are. Those of one request and block are neighbours: they read the same pages, or
 * those beside them. */
static int64_t list_items(const job *j, item *items) {
    const step *s = j->step;
    const int64_t group = j->heads / j->pages->kv_heads;
    int64_t count = 0, number = 0;
    for (int64_t request = 0; request < s->requests; request++)
        for (int64_t block = 0; block * BLOCK < s->queries[request] * group; block++) {
            const share of = share_of(j, request, 0, block);
            for (int64_t head = 0; head < j->pages->kv_heads; head++) {
                for (int64_t part = 0; part < (j->is_split ? of.parts : 1); part++)
                    items[count++] = (item){request, head, block, part, number};
                number += of.parts * of.rows;
            }
        }
    return count;
}

/* How a step is divided: an item for each block of BLOCK rows of a request and KV head, or with
 * `is_split` for each part of it, where there are few rows for many threads; `rows` of those parts. */
typedef struct {
    int32_t is_split;
    int64_t items, rows; /* at most: windows and chunks have fewer parts */
} division;

static division divided(const step *s, int64_t kv_heads, int64_t heads, int32_t threads) {
    const int64_t group = heads / kv_heads;
    int64_t shares = 0, parts = 0, rows = 0;
    for (int64_t i = 0; i < s->requests; i++) {
        const int64_t here = s->queries[i] * group, blocks = (here + BLOCK - 1) / BLOCK;
        const int64_t of_each = (s->lengths[i] + PART - 1) / PART;
        shares += blocks, parts += blocks * of_each, rows += here * of_each;
    }
    if (shares * kv_heads >= ITEMS * threads || parts == shares)
        return (division){0, kv_heads * shares, 0};
    return (division){1, kv_heads * parts, kv_heads * rows};
}

/* Bytes of scratch of `native_attention`. */
int64_t native_attention_scratch(const step *step, int64_t kv_heads, int64_t heads,
                                 int64_t value_dim, int32_t threads) {
    const division found = divided(step, kv_heads, heads, threads);
    return found.items * (int64_t)sizeof(item) + 4 * found.rows * (2 + value_dim);
}

/* q [tokens, heads, key_dim], of whose strides in numbers those of tokens and heads are given; y
 * [tokens, heads, value_dim]. `scratch`: the items; then float32 [2 + value_dim] for each row of each
 * part. */
void native_attention(const pages *pages, const step *step, const void *q, int64_t token_apart,
                      int64_t head_apart, int64_t heads, int64_t window, float scaling,
                      float softcap, const float *sinks, int64_t chunk, void *y, int32_t type,
                      item *scratch, int32_t threads) {
    if (!step->requests) return;
    const division found = divided(step, pages->kv_heads, heads, threads);
    const int32_t is_split = found.is_split;
    const job told = {pages, step, q, token_apart, head_apart, heads, window, chunk, scaling,
                      softcap, sinks, y, type, is_split}, *j = &told;
    const int64_t count = list_items(j, scratch);
    float *all = (float *)(scratch + found.items);
    int64_t work = 0;
    for (int64_t i = 0; i < step->requests; i++)
        work += step->queries[i] * heads * step->lengths[i] * pages->keys.width;
    /* a thread that takes the next head too has prefetched its first keys */
    const int64_t several = most(1, least(4, count / (4 * threads)));
#pragma omp parallel num_threads(threads) if (work > ALONE)
    {
#pragma omp for schedule(dynamic, several)
        for (int64_t n = 0; n < count; n++) {
            const item *one = scratch + n;
            const share of = share_of(j, one->request, one->head, one->block);
            if (is_split) attend_part(j, &of, one->part, all, one->number + one->part * of.rows);
            else attend(j, &of);
        }
        if (is_split) {
#pragma omp for schedule(dynamic)
            for (int64_t n = 0; n < count; n++) {
                const item *one = scratch + n;
                const share of = share_of(j, one->request, one->head, one->block);
                if (one->part == 0) join_parts(j, &of, all, one->number);
            }
        }
    }
}

/* Writing the keys and values of a step to their pages. */

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
 * slots [tokens]: block * block_size + place in it; -1: nowhere. */
void native_cache_write(const pages *p, const int64_t *slots, int64_t tokens, const void *k,
                        int64_t k_token, int64_t k_head, const void *v, int64_t v_token,
                        int64_t v_head, int32_t type, int32_t threads) {
    /* less is written than a product computes, but to memory that is far away */
    const int64_t numbers = 4 * tokens * p->kv_heads * (p->keys.width + p->values.width);
#pragma omp parallel for schedule(static) num_threads(threads) if (numbers > ALONE)
    for (int64_t token = 0; token < tokens; token++) {
        if (slots[token] < 0) continue;
        const int64_t block = slots[token] / p->block_size, place = slots[token] % p->block_size;
        for (int64_t head = 0; head < p->kv_heads; head++) {
            const int64_t row = (block * p->kv_heads + head) * p->block_size + place;
            write_row(&p->keys, row, k, token * k_token + head * k_head, type);
            write_row(&p->values, row, v, token * v_token + head * v_head, type);
        }
    }
}
