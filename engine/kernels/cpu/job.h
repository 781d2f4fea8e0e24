/* What attention is computed of: the requests of a step, one layer's queries and pages. */
#pragma once

#include "part.h"

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
    int64_t chunk;  /* positions in a chunk: a token sees the keys of its own; 0: all */
    float scaling, softcap; /* softcap 0: none */
    const float *sinks;     /* [heads]: a score without a value; NULL: none */
    void *y;                /* [tokens, heads, value_dim] */
    int32_t type;           /* of q and y */
    int32_t is_split;       /* parts are for several threads */
} job;

/* Position of the first key that a token at `position` sees. */
INLINE int64_t first_seen(const job *j, int64_t position) {
    if (j->chunk) return position / j->chunk * j->chunk;
    return j->window ? most(0, position + 1 - j->window) : 0;
}
