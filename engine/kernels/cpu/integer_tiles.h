/* integer.c's products of many rows, in tiles of AMX.
 *
 * 32 rows of activations stay in a core's first cache while codes pass by: those of 4 bits widened
 * once for all rows, those of 8 bits fetched before. Sums leave the tiles with every group of inputs;
 * vectors scale those of one group while the next one's are under way.
 */
#pragma once

#include "activations.h"
#include "tiles.h"

/* Prefetch distance within a panel, in bytes. Into L2: a core has few L1 misses outstanding. */
#define AHEAD 2048
#define CHUNK_BYTES 786432 /* whose codes stay in the second cache: integer.py */

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

/* What 32 rows by the panels of a chunk come to. */
typedef struct {
    _Alignas(64) float totals[32][BETWEEN];
    int32_t upper[WIDEST / 2][32][2 * LANES]; /* of two panels */
    int32_t lower[WIDEST / 2][32][2 * LANES];
    lines next; /* codes of 8 bits, of the next chunk */
} results;

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

/* Sums of a group, of which the rows from `row` to before `end` are still to be scaled and added to the
 * totals, as many `at_once` as that takes no longer than a product of tiles. */
typedef struct {
    const int32_t (*upper)[2 * LANES], (*lower)[2 * LANES];
    float (*totals)[BETWEEN];
    const float *x_scales;
    const int32_t *x_sums;
    const uint8_t *low; /* NULL: no row has any */
    floats scales[2];
    ints zeros[2];
    int64_t row, end, at_once;
} scaling;

INLINE void scale_row(const scaling *of, int64_t r, const int S, const int bits, const int is_low) {
    UNROLLED(s, S) {
        float *total = of->totals[r] + s * LANES;
        ints sum = load_ints(of->upper[r] + s * LANES);
        if (is_low && of->low[r]) sum = joined(sum, load_ints(of->lower[r] + s * LANES));
        if (bits == 8) sum = minus(sum, times(of->zeros[s], splat(of->x_sums[r])));
        const floats found = scaled(as_floats(sum), of->scales[s]);
        store_floats(total, plus_scaled(load_floats(total), found, of->x_scales[r]));
    }
}

/* What is done beside products. */
typedef struct {
    scaling last;
    lines next;
} besides;

INLINE void beside(besides *these, const int S, const int bits) {
    scaling *of = &these->last;
    const int64_t end = least(of->row + of->at_once, of->end);
    if (bits == 8) bring(&these->next);
    for (; of->row < end; of->row++) scale_row(of, of->row, S, bits, 0);
}

INLINE void scale_all(scaling *of, const int S, const int bits) {
    for (; of->low && of->row < of->end; of->row++) scale_row(of, of->row, S, bits, 1);
    for (; of->row < of->end; of->row++) scale_row(of, of->row, S, bits, 0);
}

INLINE void beside_14(void *of, int64_t step, int n) { beside(of, 1, 4); }
INLINE void beside_24(void *of, int64_t step, int n) { beside(of, 2, 4); }
INLINE void beside_18(void *of, int64_t step, int n) { beside(of, 1, 8); }
INLINE void beside_28(void *of, int64_t step, int n) { beside(of, 2, 8); }

/* Products of 16 * R rows of x by the codes of S panels, added to sums or, with `first`, in their
 * place. Codes of 4 bits are signed. */
INLINE void dot_tiles(const activations *x, const int8_t *from, const uint8_t *codes, int64_t inputs,
                      int first, void *sums, meanwhile also, void *with, const int R, const int S,
                      const int bits) {
    const operand left = {from, 16 * x->inputs, x->step, 16 * x->step, 0};
    const operand right = {codes, x->inputs * LANES, 64, x->step * LANES, 1};
    const tile_sums to = {sums, 16 * 128, 64, 128};
    multiply_tiles(left, right, x->step == 64 ? inputs / 64 : inputs / 32, first, to, also, with, R, S,
                   bits == 4 ? SIGNED_CODES : UNSIGNED_CODES);
}

/* Inputs k to `end`, of group g or of it and the next ones, of 16 * R rows by S panels, the first of
 * which is `here` of the chunk's. A group's sums are scaled while the next one's are under way. */
INLINE void dot_groups(const packed *w, const activations *x, int64_t row, int64_t panel,
                       int64_t here, int64_t k, int64_t end, int64_t g, const uint8_t *codes,
                       results *to, meanwhile also, const int R, const int S, const int bits) {
    besides these = {.next = to->next};
    float(*totals)[BETWEEN] = (float(*)[BETWEEN])(to->totals[0] + here * LANES);
    int first = k == g * w->group;
    for (int r = 0; k == 0 && r < 16 * R; r++)
        UNROLLED(s, S) store_floats(totals[r] + s * LANES, no_floats());
    for (; k < end; first = 1) {
        const int64_t until = least((g + 1) * w->group, end), place = code_place(x, row, k);
        const int64_t at = w->group > NEAR ? here / 2 : g % 2, group_at = g * x->rows + row;
        const int has_low = any_low(x, row, g, R);
        if (these.last.low) scale_all(&these.last, S, bits);
        these.last.at_once = (16 * x->step - 1) / (S * (until - k)) + 1;
        dot_tiles(x, x->high + place, codes + k * LANES, until - k, first, to->upper[at], also, &these, R,
                  S, bits);
        if (has_low)
            dot_tiles(x, x->low + place, codes + k * LANES, until - k, first, to->lower[at], nothing,
                      NULL, R, S, bits);
        scale_all(&these.last, S, bits);
        k = until;
        if (k < (g + 1) * w->group) break;
        these.last =
            (scaling){.upper = to->upper[at], .lower = to->lower[at], .totals = totals,
                      .x_scales = x->scales + group_at, .x_sums = x->sums + group_at,
                      .low = has_low ? x->has_low + group_at : NULL, .end = 16 * R};
        UNROLLED(s, S) {
            const int64_t of = ((panel + s) * x->groups + g) * LANES;
            these.last.scales[s] = load_numbers(w->scales, of, w->scale_type);
            these.last.zeros[s] = w->zeros ? widened((const uint8_t *)w->zeros + of) : splat(128);
        }
        g++;
    }
    scale_all(&these.last, S, bits);
    to->next = these.next;
}

/* 16 * R rows from `row` on by `count` panels, whose codes of 8 bits are `codes`. */
INLINE void block(const packed *w, const activations *x, int64_t row, int64_t panel, int64_t count,
                  const uint8_t *codes, results *to, const int R, const int bits) {
    const int64_t group = w->group, several = group < NEAR ? NEAR / group : 1;
    for (int64_t k = 0, end, g = 0; k < w->inputs; k = end, g = k / group) {
        end = group > NEAR ? least(k + NEAR, (g + 1) * group) : least((g + several) * group, w->inputs);
        for (int64_t n = 0; n < count; n += 2) {
            const uint8_t *from = codes + n * w->inputs * LANES;
            if (count - n > 1)
                dot_groups(w, x, row, panel + n, n, k, end, g, from, to,
                           bits == 4 ? beside_24 : beside_28, R, 2, bits);
            else
                dot_groups(w, x, row, panel + n, n, k, end, g, from, to,
                           bits == 4 ? beside_14 : beside_18, R, 1, bits);
        }
    }
}

/* All rows by `count` panels. after: panels of the next chunk. */
INLINE void chunk(const packed *w, const activations *x, int64_t rows, int64_t panel, int64_t count,
                  int64_t after, uint8_t *near, void *y, int type, const int bits) {
    const uint8_t *codes = bits == 4 ? near : w->codes + panel * w->inputs * LANES;
    const int64_t left = bits == 8 ? after * w->inputs * LANES / 64 : 0;
    results found;
    found.next = (lines){codes + count * w->inputs * LANES, left, left, 0, 0, weight_rate(rows)};
    /* of 4 bits: widened once for all rows */
    for (int64_t n = 0; bits == 4 && n < count; n++)
        widen_codes(w, panel + n, near + n * w->inputs * LANES, 1);
    for (int64_t row = 0; row < rows; row += 32) {
        const int64_t here = least(32, rows - row);
        if (here > 16) block(w, x, row, panel, count, codes, &found, 2, bits);
        else block(w, x, row, panel, count, codes, &found, 1, bits);
        for (int64_t r = 0; r < here; r++)
            for (int64_t n = 0; n < count; n++) {
                const int64_t start = (panel + n) * LANES;
                write_lanes(y, (row + r) * w->outputs + start, w->outputs - start,
                            load_floats(found.totals[r] + n * LANES), type);
            }
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
        if (w->bits == 4) chunk(w, x, rows, panel, count, after, near, y, type, 4);
        else chunk(w, x, rows, panel, count, after, near, y, type, 8);
    }
    end_tiles(&before);
}

#else
INLINE int fits_tiles(const packed *w, int64_t rows) { return 0; }
INLINE void tiles_of(const packed *w, const activations *x, int64_t rows, int64_t first,
                     int64_t last, uint8_t *near, void *y, int type) {}
#endif
