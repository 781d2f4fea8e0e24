/* Weights of bfloat16 in 12 bits, bit for bit: trained or random, nearly all numbers of a matrix have one
 * of 16 exponents that follow each other (Zhang et al., "DFloat11", 2025, arXiv 2504.11651, code them by
 * their entropy in 11 bits; 12 bits are decoded by one shuffle).
 *
 * Panels of 32 outputs, in steps of 32 inputs: eight runs of 128 numbers, each run a quarter of a right
 * operand of AMX [16 pairs of inputs][16 outputs][2], first of the panel's first 16 outputs. A run is 64
 * bytes that hold the high half of two numbers each, in 4 bits (the sign, and how far the exponent's upper
 * 7 bits are above the panel's lowest), then 128 low halves. Numbers with other exponents are listed.
 */
#pragma once

#include "tiles.h"

#define PANEL 32     /* outputs */
#define RUN 128      /* numbers */
#define RUN_BYTES 192
#define STEP_RUNS 8

typedef struct {
    uint32_t place; /* in the panel, in the order of its runs */
    uint16_t value, unused;
} other_number;

typedef struct {
    int64_t outputs, inputs;     /* multiples of 32 */
    const uint8_t *runs;         /* [outputs / 32][inputs / 32][8][192] */
    const uint8_t *lowest;       /* [outputs / 32]: upper 7 bits of an exponent, of which 8 follow */
    const int64_t *starts;       /* [outputs / 32]: of each panel's ... */
    const other_number *others;  /* ... numbers, after which `place` is 2^32 - 1 */
} compressed;

#if AMX

#define AHEAD_OF_RUN 12288 /* bytes to fetch before they are needed */

/* Runs on their way to right operands. */
typedef struct {
    const uint8_t *from;
    uint16_t *to;
    const other_number *next;
    bytes high_halves; /* by 4 bits */
    int64_t place, left, rate; /* of the run; runs: to decompress, for each call of decompress_some */
} runs;

/* From input `k` of a panel on, `inputs` of them. next: of the others, where k is not 0. */
INLINE runs runs_from(const compressed *w, int64_t panel, int64_t k, int64_t inputs, uint16_t *to,
                      const other_number *next) {
    const __m128i each = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -128, -127, -126, -125, -124, -123, -122,
                                       -121);
    const __m128i halves = _mm_add_epi8(each, _mm_set1_epi8((char)w->lowest[panel]));
    const int64_t place = k * PANEL, first = panel * w->inputs * PANEL;
    return (runs){w->runs + (first + place) / RUN * RUN_BYTES, to,
                  k ? next : w->others + w->starts[panel], _mm512_broadcast_i32x4(halves), place,
                  inputs * PANEL / RUN, 0};
}

/* The next `rate` runs, or those that are left; beside products (meanwhile of tiles.h). */
INLINE void decompress_some(void *with, int64_t step, int n) {
    runs *of = with;
    const int64_t count = least(of->rate, of->left);
    const uint8_t *from = of->from;
    uint16_t *to = of->to;
    for (int64_t i = 0; i < count; i++, from += RUN_BYTES, to += RUN) {
        UNROLLED(line, 3) _mm_prefetch((const char *)from + AHEAD_OF_RUN + 64 * line, _MM_HINT_T1);
        const bytes both = load_bytes(from);
        const bytes high[2] = {_mm512_shuffle_epi8(of->high_halves, low_nibbles(both)),
                               _mm512_shuffle_epi8(of->high_halves, high_nibbles(both))};
        UNROLLED(half, 2) {
            const bytes low = load_bytes(from + 64 + 64 * half);
            store_bytes((uint8_t *)(to + 64 * half), _mm512_unpacklo_epi8(low, high[half]));
            store_bytes((uint8_t *)(to + 64 * half + 32), _mm512_unpackhi_epi8(low, high[half]));
        }
    }
    of->from = from, of->to = to, of->left -= count, of->place += count * RUN;
    for (; of->next->place < of->place; of->next++)
        to[(int64_t)of->next->place - of->place] = of->next->value;
}

INLINE void decompress_rest(runs *of) {
    of->rate = of->left;
    decompress_some(of, 0, 0);
}

#endif
