/* Attention of few query tokens over the pages of a KV cache, read where they lie.
 *
 *   y[t, h] = sum over l of softmax(scaling * q[t, h] . key[l])[l] * value[l]
 *
 * over all keys l of the token's own sequence up to itself, or those within its window. The query
 * heads of a group read each key once. Everything is float32 inside and rounded once.
 *
 * A sequence is divided into parts of PART keys, counted from its beginning, which are computed by
 * themselves and put together in their order. So what a token comes to depends on no other: not on
 * those beside it in its request, nor on other requests, nor on how many threads there are.
 */
#include <math.h>

#include "exponential.h"
#include "pages.h"

#define PART 512 /* keys: with 128 bfloat16 each, 128 KiB, which stay near while heads read them */
#define AHEAD 32 /* keys: how far before they are needed they are fetched */
#define ROWS 4   /* of queries at a time */
#if WIDE_TILES
#define MOST_ROWS 4
#define ACROSS(R) ((R) > 2 ? 4 : 8) /* vectors of a value at a time */
#else
#define MOST_ROWS 1 /* too few registers for more */
#define ACROSS(R) 4
#endif

typedef struct {
    int64_t requests;
    const int64_t *first_rows, *queries; /* [requests]: rows of q, neighbours, in their order */
    const int64_t *lengths;              /* of the sequences, these tokens with them */
    const int64_t *table_starts;         /* of a request's blocks in `tables` */
    const int32_t *tables;
} step;

typedef struct {
    const pages *pages;
    const step *step;
    const void *q; /* [tokens, heads, key_dim] */
    int64_t token_apart, head_apart, heads;
    int64_t window; /* most recent keys that are seen, the token's own with them; 0: all */
    float scaling, softcap; /* softcap 0: none */
    const float *sinks;     /* [heads]: a score without a value; NULL: none */
    void *y;                /* [tokens, heads, value_dim] */
    int32_t type;           /* of q and y */
} job;

/* What a part of the keys comes to for one row of queries. */
typedef struct {
    float largest, total; /* score; sum of e^(score - largest). No key was seen: -INFINITY and 0 */
    float sum[];          /* of the values, each times that power [value_dim] */
} found;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Keys of one part that lie from `first` to before `end`, counted from the part's beginning. */
typedef struct {
    int64_t first, end;
    int64_t place[PART];                /* rows of the pages; of keys before `first`, any */
    float key_scale[PART], value_scale[PART]; /* where they are quantized */
} keys;

static void find_keys(keys *k, const pages *p, const int32_t *table, int64_t start, int64_t head) {
    const int64_t size = p->block_size;
    int64_t l = k->first;
    for (int64_t block = (start + l) / size; l < k->end; block++) {
        const int64_t base = (table[block] * p->kv_heads + head) * size - block * size + start;
        const int64_t until = least((block + 1) * size - start, k->end);
        for (; l < until; l++) k->place[l] = base + l;
    }
    /* whole vectors of keys are computed: those beside the ones that are there are some of them */
    for (l = k->first / LANES * LANES; l < k->first; l++) k->place[l] = k->place[k->first];
    for (l = k->end; l % LANES; l++) k->place[l] = k->place[k->end - 1];
    const int64_t from = k->first / LANES * LANES;
    if (p->keys.scales) read_scales(k->key_scale + from, &p->keys, k->place + from, l - from);
    if (p->values.scales) read_scales(k->value_scale + from, &p->values, k->place + from, l - from);
}

/* scores [R][PART] of R rows of queries. */
INLINE void score(const keys *k, const stored *of, const float *q, float *scores, const int R,
                  const int kind) {
    const int64_t width = of->width, last = k->end - 1;
    for (int64_t l = k->first / 4 * 4; l < k->end; l += 4) {
        floats total[ROWS][4];
        int64_t from[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            from[n] = k->place[l + n] * width;
            fetch_stored(of->elements, k->place[least(l + n + AHEAD, last)] * width, width, kind);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) total[r][n] = no_floats();
        for (int64_t d = 0; d < width; d += LANES) {
            floats key[4];
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) key[n] = load_stored(of->elements, from[n] + d, kind);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const floats query = load_floats(q + r * width + d);
#pragma GCC unroll 4
                for (int n = 0; n < 4; n++)
                    total[r][n] = plus_product(total[r][n], key[n], query);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            _mm_storeu_ps(scores + r * PART + l,
                          sums_of_four(total[r][0], total[r][1], total[r][2], total[r][3]));
    }
}

/* Scores of one row become powers of e, zero where the row sees no key. `first` and `end`: what it
 * sees. */
static void weigh(const job *j, const keys *k, float *scores, int64_t first, int64_t end,
                  found *to) {
    const int64_t from = k->first / LANES * LANES, until = (k->end + LANES - 1) / LANES * LANES;
    first = least(most(first, from), until), end = least(most(end, from), until);
    to->largest = -INFINITY, to->total = 0;
    if (j->pages->keys.scales)
        for (int64_t l = from; l < until; l++) scores[l] *= k->key_scale[l];
    if (j->softcap > 0) {
        const float cap = j->softcap, twice = 2.0f / cap;
        for (int64_t l = from; l < until; l++)
            scores[l] = cap - 2.0f * cap / (1.0f + power(scores[l] * twice));
    }
    for (int64_t l = from; l < first; l++) scores[l] = -INFINITY;
    for (int64_t l = end; l < until; l++) scores[l] = -INFINITY;
    float largest = -INFINITY;
    for (int64_t l = from; l < until; l++) largest = scores[l] > largest ? scores[l] : largest;
    if (first >= end) { /* also keeps infinity less infinity from becoming a number's weight */
        for (int64_t l = from; l < until; l++) scores[l] = 0;
        return;
    }
    for (int64_t l = from; l < until; l++)
        scores[l] = scores[l] == -INFINITY ? 0.0f : power(scores[l] - largest);
    floats sum = no_floats();
    for (int64_t l = from; l < until; l += LANES)
        sum = plus_product(sum, load_floats(scores + l), splat_float(1.0f));
    to->largest = largest;
    to->total = _mm_cvtss_f32(sums_of_four(sum, sum, sum, sum));
    if (j->pages->values.scales)
        for (int64_t l = from; l < until; l++) scores[l] *= k->value_scale[l];
}

/* Elements `d` to `d` + N vectors of the values, by the weights of R rows. */
INLINE void gather(const keys *k, const stored *of, const float *weights, int64_t d,
                   float *const to[ROWS], const int R, const int N, const int kind) {
    floats total[ROWS][8];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) total[r][n] = no_floats();
    for (int64_t l = k->first; l < k->end; l++) {
        const int64_t from = k->place[l] * of->width + d;
        const int64_t next = k->place[least(l + AHEAD, k->end - 1)] * of->width + d;
        floats value[8];
        fetch_stored(of->elements, next, N * LANES, kind);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) value[n] = load_stored(of->elements, from + n * LANES, kind);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const floats weight = splat_float(weights[r * PART + l]);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) total[r][n] = plus_product(total[r][n], value[n], weight);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) store_floats(to[r] + d + n * LANES, total[r][n]);
}

INLINE void sum_values(const keys *k, const stored *of, const float *weights,
                       float *const to[ROWS], const int R, const int kind) {
    int64_t d = 0;
    for (; d + ACROSS(R) * LANES <= of->width; d += ACROSS(R) * LANES)
        gather(k, of, weights, d, to, R, ACROSS(R), kind);
    for (; d < of->width; d += LANES) gather(k, of, weights, d, to, R, 1, kind);
}

#define BY_ROWS(CALL)         \
    do {                      \
        if (rows == 4) {      \
            enum { R = 4 };   \
            CALL;             \
        } else if (rows == 2) { \
            enum { R = 2 };   \
            CALL;             \
        } else {              \
            enum { R = 1 };   \
            CALL;             \
        }                     \
    } while (0)

#define BY_KIND(CALL)                             \
    do {                                          \
        if (kind == BF16) CALL(BF16);             \
        else if (kind == F32) CALL(F32);          \
        else if (kind == F16) CALL(F16);          \
        else if (kind == INT8) CALL(INT8);        \
        else CALL(E4M3);                          \
    } while (0)

static void score_rows(const keys *k, const stored *of, const float *q, float *scores, int rows) {
    const int kind = of->kind;
#define SCORE(KIND) BY_ROWS(score(k, of, q, scores, R, KIND))
    BY_KIND(SCORE);
}

static void sum_rows(const keys *k, const stored *of, const float *weights,
                     float *const to[ROWS], int rows) {
    const int kind = of->kind;
#define SUM(KIND) BY_ROWS(sum_values(k, of, weights, to, R, KIND))
    BY_KIND(SUM);
}

/* Where the rows of one request and one KV head stand: row r is token r / group of the request. */
typedef struct {
    int64_t request, head, group, rows;
    int64_t position; /* of the first token */
    int64_t first_part, parts;
} share;

static share share_of(const job *j, int64_t request, int64_t head) {
    const step *s = j->step;
    share of = {.request = request, .head = head, .group = j->heads / j->pages->kv_heads};
    of.rows = s->queries[request] * of.group;
    of.position = s->lengths[request] - s->queries[request];
    const int64_t first = j->window ? most(0, of.position + 1 - j->window) : 0;
    of.first_part = first / PART;
    of.parts = (s->lengths[request] - 1) / PART + 1 - of.first_part;
    return of;
}

INLINE int64_t query_head(const share *of, int64_t row) {
    return of->head * of->group + row % of->group;
}
INLINE int64_t query_row(const job *j, const share *of, int64_t row) {
    return j->step->first_rows[of->request] + row / of->group;
}
INLINE int64_t found_size(const job *j) { return 2 + j->pages->values.width; }
INLINE found *found_at(const job *j, float *all, int64_t number) {
    return (found *)(all + number * found_size(j));
}

/* One row, from what its parts came to, `apart` rows from each other. */
static void put_together(const job *j, const share *of, int64_t row, float *all, int64_t number,
                         int64_t apart) {
    const int64_t width = j->pages->values.width, head = query_head(of, row);
    const float sink = j->sinks ? j->sinks[head] : -INFINITY;
    float largest = sink, total = 0, sum[WIDEST];
    for (int64_t part = 0; part < of->parts; part++) {
        const float one = found_at(j, all, number + part * apart)->largest;
        largest = one > largest ? one : largest;
    }
    if (sink > -INFINITY) total = power(sink - largest);
    memset(sum, 0, sizeof *sum * width);
    for (int64_t part = 0; part < of->parts; part++) {
        const found *one = found_at(j, all, number + part * apart);
        if (one->largest == -INFINITY && one->total == 0) continue; /* it saw none of them */
        const float weight = power(one->largest - largest);
        total += weight * one->total;
        for (int64_t d = 0; d < width; d++) sum[d] += weight * one->sum[d];
    }
    for (int64_t d = 0; d < width; d++) sum[d] /= total;
    write_floats(j->y, (query_row(j, of, row) * j->heads + head) * width, sum, width, j->type);
}

/* All rows of a share over one part of its keys, to `all` from row `number` on; of a share with
 * one part alone to y. */
static void attend(const job *j, const share *of, int64_t part, float *all, int64_t number) {
    const pages *p = j->pages;
    const step *s = j->step;
    const int64_t start = (of->first_part + part) * PART, length = s->lengths[of->request];
    const int64_t width = p->keys.width;
    const int64_t seen = j->window ? of->position + 1 - j->window : 0;
    _Alignas(64) float q[ROWS * WIDEST], scores[ROWS * PART], here[ROWS * (2 + WIDEST)];
    keys k;
    k.first = most(seen - start, 0), k.end = least(length - start, PART);
    find_keys(&k, p, s->tables + s->table_starts[of->request], start, of->head);
    for (int64_t row = 0, rows; row < of->rows; row += rows) {
        const int64_t left = of->rows - row;
        float *const into = of->parts == 1 ? here : all;
        const int64_t at = of->parts == 1 ? 0 : number + row;
        float *to[ROWS];
        rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (rows > MOST_ROWS) rows = MOST_ROWS;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t from = query_row(j, of, row + r) * j->token_apart +
                                 query_head(of, row + r) * j->head_apart;
            read_floats(q + r * width, j->q, from, width, j->type);
            for (int64_t d = 0; d < width; d++) q[r * width + d] *= j->scaling;
        }
        score_rows(&k, &p->keys, q, scores, rows);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t position = of->position + (row + r) / of->group;
            const int64_t first = j->window ? most(k.first, position + 1 - j->window - start) : 0;
            found *const one = found_at(j, into, at + r);
            weigh(j, &k, scores + r * PART, first, least(k.end, position + 1 - start), one);
            to[r] = one->sum;
        }
        sum_rows(&k, &p->values, scores, to, rows);
        if (of->parts == 1)
            for (int64_t r = 0; r < rows; r++) put_together(j, of, row + r, here, r, 0);
    }
}

/* `scratch`: int64 [2, requests + 1], then float32 [2 + value_dim] for each part of each row of
 * requests with several parts. */
void native_attention(const pages *pages, const step *step, const void *q, int64_t token_apart,
                      int64_t head_apart, int64_t heads, int64_t window, float scaling,
                      float softcap, const float *sinks, void *y, int32_t type, int64_t *scratch,
                      int32_t threads) {
    const job told = {pages, step, q, token_apart, head_apart, heads, window,
                      scaling, softcap, sinks, y, type}, *j = &told;
    const int64_t requests = step->requests;
    int64_t *items = scratch, *rows = scratch + requests + 1, work = 0, several = 0;
    float *all = (float *)(rows + requests + 1);
    items[0] = rows[0] = 0;
    for (int64_t i = 0; i < requests; i++) {
        const share of = share_of(j, i, 0);
        items[i + 1] = items[i] + pages->kv_heads * of.parts;
        rows[i + 1] = rows[i] + (of.parts > 1 ? pages->kv_heads * of.parts * of.rows : 0);
        work += of.rows * pages->kv_heads * step->lengths[i] * pages->keys.width;
        several += of.parts > 1;
    }
#pragma omp parallel num_threads(threads) if (work > ALONE)
    {
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items[requests]; item++) {
            int64_t i = 0, end = requests; /* the request whose items these are */
            while (end - i > 1) {
                const int64_t middle = (i + end) / 2;
                if (items[middle] <= item) i = middle;
                else end = middle;
            }
            const int64_t place = item - items[i];
            share of = share_of(j, i, 0);
            of.head = place / of.parts;
            attend(j, &of, place % of.parts, all, rows[i] + place * of.rows);
        }
        if (several) {
#pragma omp for schedule(static)
            for (int64_t pair = 0; pair < requests * pages->kv_heads; pair++) {
                const share of = share_of(j, pair / pages->kv_heads, pair % pages->kv_heads);
                const int64_t first = rows[of.request] + of.head * of.parts * of.rows;
                if (of.parts > 1)
                    for (int64_t row = 0; row < of.rows; row++)
                        put_together(j, &of, row, all, first + row, of.rows);
            }
        }
    }
}
