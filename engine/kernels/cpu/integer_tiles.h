/* integer.c's products of many rows, in tiles of AMX.
 *
 * 32 rows of activations stay in a core's first cache while codes pass by: those of 4 bits widened
 * once for all rows, those of 8 bits fetched before. Sums leave the tiles with every group of inputs;
 * vectors scale them while the next products are under way.
 */
#pragma once

#include "activations.h"
#include "tiles.h"

/* Prefetch distance within a panel, in bytes. Into L2: a core has few L1 misses outstanding. */
#define AHEAD 2048
#define CHUNK_BYTES 786432 /* whose codes stay in the second cache: integer.py */

enum { OF_4, OF_8, OF_8_WHOLE }; /* OF_8_WHOLE: one scale for all inputs, activations of one part */

#if WIDE_TILES
/* A panel's codes of 4 bits, with `is_signed` less their zero points, as those of 8 bits lie. */
INLINE void widen_codes(const packed *w, int64_t panel, uint8_t *to, const int is_signed) {
    const int64_t groups = w->inputs / w->group;
    const uint8_t *from = w->codes + panel * w->inputs * LANES / 2;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t place = (panel * groups + g) * LANES;
        const ints zeros = !is_signed ? no_ints()
                           : w->zeros ? widened((const uint8_t *)w->zeros + place)
                                      : splat(8);
        const bytes each = times(zeros, splat(0x01010101));
        for (int64_t k = 0; k < w->group; k += 8, from += 64, to += 128) {
            const bytes both = load_bytes(from);
            _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
            store_bytes(to, less_bytes(low_nibbles(both), each));
            store_bytes(to + 64, less_bytes(high_nibbles(both), each));
        }
    }
}
#endif

#if AMX

#define FEW_ROWS 12        /* below, vectors are as fast as a tile of 16 */
#define NEAR 1024          /* inputs at a time, of which 32 rows stay in the first cache */
#define WIDEST 32          /* panels at a time, or as many as CHUNK_BYTES hold */

#define BETWEEN (WIDEST * LANES + LANES) /* totals from row to row: see APART */

static int fits_tiles(const packed *w, int64_t rows) {
    return tiles_made_of == REGISTERS && rows >= FEW_ROWS && w->group % 32 == 0;
}

/* Of 16 * R rows. */
INLINE int any_low(const activations *x, int64_t row, int64_t g, const int R) {
    const uint8_t *from = x->has_low + g * x->rows + row;
    uint8_t found = 0;
    for (int r = 0; r < 16 * R; r++) found |= from[r];
    return found;
}

/* Where results of some rows and outputs belong: in y, from `place` on, where so many are. */
typedef struct {
    void *y;
    int64_t place, apart, rows, outputs;
    int type;
} target;

/* Sums of a group, of which the rows from `row` to before `end` are still to be scaled, as many
 * `at_once` as that takes no longer than a product of tiles, and added to the totals of the groups before;
 * or, OF_8_WHOLE, put where they belong. */
typedef struct {
    const int32_t (*upper)[2 * LANES], (*lower)[2 * LANES];
    float (*totals)[BETWEEN];
    __mmask16 before; /* 0: there is no group before */
    const float *x_scales;
    const int32_t *x_sums;
    const uint8_t *low; /* NULL: no row has any */
    floats scales[2];
    ints zeros[2];
    int64_t row, end, at_once;
    target to;
} scaling;

/* What 32 rows by the panels of a chunk come to. */
typedef struct {
    _Alignas(64) float totals[32][BETWEEN];
    int32_t upper[WIDEST / 2][32][2 * LANES]; /* of two panels */
    int32_t lower[WIDEST / 2][32][2 * LANES];
    scaling last;
    target to;
    lines next; /* codes of 8 bits, of the next chunk */
} results;

INLINE void write_row(const target *to, int64_t r, const floats *from, const int S) {
    const int64_t place = to->place + r * to->apart;
    if (r >= to->rows) return;
    if (S == 2) write_two(to->y, place, to->outputs, from[0], from[1], to->type);
    else write_lanes(to->y, place, to->outputs, from[0], to->type);
}

INLINE void scale_row(const scaling *of, int64_t r, const int S, const int kind, const int is_low) {
    floats total[2];
    UNROLLED(s, S) {
        float *to = of->totals[r] + s * LANES;
        ints sum = load_ints(of->upper[r] + s * LANES);
        if (is_low && of->low[r]) sum = joined(sum, load_ints(of->lower[r] + s * LANES));
        if (kind != OF_4) sum = minus(sum, times(of->zeros[s], splat(of->x_sums[r])));
        const floats found = scaled(as_floats(sum), of->scales[s]);
        total[s] = kind == OF_8_WHOLE ? no_floats() : _mm512_maskz_loadu_ps(of->before, to);
        total[s] = plus_scaled(total[s], found, of->x_scales[r]);
        if (kind != OF_8_WHOLE) store_floats(to, total[s]);
    }
    if (kind == OF_8_WHOLE) write_row(&of->to, r, total, S);
}

/* What is done beside products. */
typedef struct {
    scaling last;
    lines next;
} besides;

INLINE void beside(besides *these, const int S, const int kind) {
    scaling *of = &these->last;
    const int64_t end = least(of->row + of->at_once, of->end);
    if (kind != OF_4) bring(&these->next);
    for (; of->row < end; of->row++) scale_row(of, of->row, S, kind, 0);
}

INLINE void scale_all(scaling *of, const int S, const int kind) {
    for (; of->low && of->row < of->end; of->row++) scale_row(of, of->row, S, kind, 1);
    for (; of->row < of->end; of->row++) scale_row(of, of->row, S, kind, 0);
}

#define BESIDE_PRODUCTS(name, S, kind) \
    INLINE void name(void *of, int64_t step, int n) { beside(of, S, kind); }
BESIDE_PRODUCTS(beside_one_of_4, 1, OF_4)
BESIDE_PRODUCTS(beside_one_of_8, 1, OF_8)
BESIDE_PRODUCTS(beside_one_of_8_whole, 1, OF_8_WHOLE)
BESIDE_PRODUCTS(beside_two_of_4, 2, OF_4)
BESIDE_PRODUCTS(beside_two_of_8, 2, OF_8)
BESIDE_PRODUCTS(beside_two_of_8_whole, 2, OF_8_WHOLE)

INLINE meanwhile *beside_products(const int S, const int kind) {
    if (kind == OF_4) return S == 2 ? beside_two_of_4 : beside_one_of_4;
    if (kind == OF_8) return S == 2 ? beside_two_of_8 : beside_one_of_8;
    return S == 2 ? beside_two_of_8_whole : beside_one_of_8_whole;
}

/* Products of 16 * R rows of x by the codes of S panels, added to sums or, with `first`, in their
 * place. Codes of 4 bits are signed. */
INLINE void dot_tiles(const activations *x, const int8_t *from, const uint8_t *codes, int64_t inputs,
                      int first, void *sums, meanwhile also, void *with, const int R, const int S,
                      const int kind) {
    const operand left = {from, 16 * x->inputs, x->step, 16 * x->step, 0};
    const operand right = {codes, x->inputs * LANES, 64, x->step * LANES, 1};
    const tile_sums to = {sums, 16 * 128, 64, 128};
    multiply_tiles(left, right, x->step == 64 ? inputs / 64 : inputs / 32, first, to, also, with, R, S,
                   kind == OF_4 ? SIGNED_CODES : UNSIGNED_CODES);
}

/* Inputs k to `end`, of group g or of it and the next ones, of 16 * R rows by the S panels from number
 * `here` on of a chunk, whose first one is `panel`. lows: which of these groups have low parts, as bits.
 * A group's sums are scaled while the next products are under way: OF_8_WHOLE, which has no other group,
 * those of the next panels. */
INLINE void dot_groups(const packed *w, const activations *x, int64_t row, int64_t panel,
                       int64_t here, int64_t k, int64_t end, int64_t g, uint32_t lows,
                       const uint8_t *codes, results *to, const int R, const int S, const int kind) {
    besides these = {.next = to->next};
    scaling *last = &these.last;
    target rest = to->to;
    float(*totals)[BETWEEN] = (float(*)[BETWEEN])(to->totals[0] + here * LANES);
    const uint8_t *from = codes + here * w->inputs * LANES;
    int first = k == g * w->group;
    rest.place += here * LANES, rest.outputs -= here * LANES;
    if (kind == OF_8_WHOLE) *last = to->last;
    else last->row = last->end = 0, last->low = NULL;
    for (; k < end; first = 1, lows >>= 1) {
        const int64_t until = least((g + 1) * w->group, end), place = code_place(x, row, k);
        const int64_t at = w->group > NEAR ? here / 2 : 0; /* `last` is scaled before they are stored */
        const int64_t group_at = g * x->rows + row;
        const int has_low = kind != OF_8_WHOLE && lows & 1;
        if (last->low) scale_all(last, S, kind);
        last->at_once = (16 * x->step - 1) / (S * (until - k)) + 1;
        dot_tiles(x, x->high + place, from + k * LANES, until - k, first, to->upper[at],
                  beside_products(S, kind), &these, R, S, kind);
        if (has_low)
            dot_tiles(x, x->low + place, from + k * LANES, until - k, first, to->lower[at], nothing,
                      NULL, R, S, kind);
        k = until;
        if (k < (g + 1) * w->group) break;
        last->upper = to->upper[at], last->lower = to->lower[at], last->totals = totals;
        last->x_scales = x->scales + group_at, last->x_sums = x->sums + group_at;
        last->low = has_low ? x->has_low + group_at : NULL, last->row = 0, last->end = 16 * R;
        if (kind == OF_8_WHOLE) last->to = rest;
        else last->before = g ? 0xffff : 0;
        UNROLLED(s, S) {
            const int64_t of = ((panel + here + s) * x->groups + g) * LANES;
            last->scales[s] = load_numbers(w->scales, of, w->scale_type);
            if (kind != OF_4)
                last->zeros[s] = w->zeros ? widened((const uint8_t *)w->zeros + of) : splat(128);
        }
        g++;
    }
    if (kind == OF_8_WHOLE) to->last = *last;
    else scale_all(last, S, kind);
    for (int r = 0; kind != OF_8_WHOLE && end == w->inputs && r < 16 * R; r++) {
        floats all[2];
        UNROLLED(s, S) all[s] = load_floats(totals[r] + s * LANES);
        write_row(&rest, r, all, S);
    }
    to->next = these.next;
}

/* 16 * R rows from `row` on by `count` panels, whose codes of 8 bits are `codes`. */
INLINE void block(const packed *w, const activations *x, int64_t row, int64_t panel, int64_t count,
                  const uint8_t *codes, results *to, const int R, const int kind) {
    const int64_t group = w->group, several = group < NEAR ? NEAR / group : 1, left = count & ~1;
    for (int64_t k = 0, end, g = 0; k < w->inputs; k = end, g = k / group) {
        end = group > NEAR ? least(k + NEAR, (g + 1) * group) : least((g + several) * group, w->inputs);
        uint32_t lows = 0; /* of at most NEAR / 32 groups */
        for (int64_t n = g; kind != OF_8_WHOLE && n * group < end; n++)
            lows |= (uint32_t)(any_low(x, row, n, R) != 0) << (n - g);
        for (int64_t n = 0; n < left; n += 2)
            dot_groups(w, x, row, panel, n, k, end, g, lows, codes, to, R, 2, kind);
        scale_all(&to->last, 2, kind);
        if (left < count) {
            dot_groups(w, x, row, panel, left, k, end, g, lows, codes, to, R, 1, kind);
            scale_all(&to->last, 1, kind);
        }
    }
}

/* All rows by `count` panels. after: panels of the next chunk. */
INLINE void chunk(const packed *w, const activations *x, int64_t rows, int64_t panel, int64_t count,
                  int64_t after, uint8_t *near, void *y, int type, const int kind) {
    const uint8_t *codes = kind == OF_4 ? near : w->codes + panel * w->inputs * LANES;
    const int64_t left = kind == OF_4 ? 0 : after * w->inputs * LANES / 64;
    results found;
    found.last = (scaling){0};
    found.next = (lines){codes + count * w->inputs * LANES, left, left, 0, 0, weight_rate(rows)};
    /* of 4 bits: widened once for all rows */
    for (int64_t n = 0; kind == OF_4 && n < count; n++)
        widen_codes(w, panel + n, near + n * w->inputs * LANES, 1);
    for (int64_t row = 0; row < rows; row += 32) {
        const int64_t here = least(32, rows - row), start = panel * LANES, outputs = w->outputs - start;
        found.to = (target){y, row * w->outputs + start, w->outputs, here, outputs, type};
        if (here > 16) block(w, x, row, panel, count, codes, &found, 2, kind);
        else block(w, x, row, panel, count, codes, &found, 1, kind);
    }
}

/* All rows by the panels from `first` to `last`. near: a thread's own. */
static void tiles_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                     int64_t last, uint8_t *near, void *y, int type) {
    const tile_shapes before = begin_tiles(x->step);
    const int64_t fitting = rows > 32 ? CHUNK_BYTES / (w->inputs * LANES) / 2 * 2 : 2;
    const int64_t widest = most(2, least(WIDEST, fitting));
    for (int64_t panel = first; panel < last; panel += widest) {
        const int64_t count = least(widest, last - panel), after = least(widest, last - panel - count);
        if (w->bits == 4) chunk(w, x, rows, panel, count, after, near, y, type, OF_4);
        else if (w->parts == 2) chunk(w, x, rows, panel, count, after, near, y, type, OF_8);
        else chunk(w, x, rows, panel, count, after, near, y, type, OF_8_WHOLE);
    }
    end_tiles(&before);
}

#else
INLINE int fits_tiles(const packed *w, int64_t rows) { return 0; }
INLINE void tiles_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                     int64_t last, uint8_t *near, void *y, int type) {}
#endif
