/* Weights of bfloat16 to those of compressed.h, and back. tiled.c multiplies them. */
#include "compressed.h"

#if AMX

/* How many numbers of a panel have each of the upper 7 bits of an exponent, to found [128]. */
static void count_exponents(const uint16_t *weight, int64_t inputs, int64_t stride, int64_t *found) {
    uint32_t by[4][128] = {{0}}; /* so that equal ones, which follow each other often, need not wait */
    for (int64_t n = 0; n < PANEL; n++, weight += stride)
        for (int64_t k = 0; k < inputs; k += 4)
            UNROLLED(i, 4) by[i][weight[k + i] >> 8 & 127]++;
    for (int e = 0; e < 128; e++) found[e] = (int64_t)by[0][e] + by[1][e] + by[2][e] + by[3][e];
}

/* 32 inputs of 16 outputs as an operand [16 pairs][16][2]. */
static void as_operand(const uint16_t *weight, int64_t stride, bytes rows[16]) {
    for (int n = 0; n < 16; n++) rows[n] = load_bytes((const uint8_t *)(weight + n * stride));
    transpose(rows);
}

/* Bytes of two rows of an operand: their low or high halves. */
INLINE bytes halves(bytes a, bytes b, const int high) {
    const bytes low = _mm512_set1_epi16(255);
    if (high) a = _mm512_srli_epi16(a, 8), b = _mm512_srli_epi16(b, 8);
    else a = _mm512_and_si512(a, low), b = _mm512_and_si512(b, low);
    return _mm512_packus_epi16(a, b);
}

/* Lists those of `others` [64], bytes of two rows of an operand, that are numbers of their own. */
INLINE other_number *list(uint64_t others, bytes a, bytes b, int64_t place, other_number *to) {
    if (!others) return to;
    uint16_t numbers[64];
    store_bytes((uint8_t *)numbers, a), store_bytes((uint8_t *)(numbers + 32), b);
    for (; others; others &= others - 1) {
        const int at = __builtin_ctzll(others); /* in each 16 bytes eight of a, then eight of b */
        const int number = at % 16 / 8 * 32 + at / 16 * 8 + at % 8;
        *to++ = (other_number){(uint32_t)(place + number), numbers[number], 0};
    }
    return to;
}

/* One run, of four rows of an operand. */
INLINE other_number *compress_run(const bytes rows[4], bytes lowest, int64_t place, uint8_t *to,
                                  other_number *others) {
    bytes codes[2];
    UNROLLED(half, 2) {
        const bytes a = rows[2 * half], b = rows[2 * half + 1], high = halves(a, b, 1);
        const bytes above = less_bytes(_mm512_and_si512(high, _mm512_set1_epi8(127)), lowest);
        const bytes sign = _mm512_and_si512(high_nibbles(high), _mm512_set1_epi8(8));
        codes[half] = _mm512_or_si512(sign, _mm512_and_si512(above, _mm512_set1_epi8(7)));
        store_bytes(to + 64 + 64 * half, halves(a, b, 0));
        const uint64_t left_out = _mm512_cmpgt_epu8_mask(above, _mm512_set1_epi8(7));
        others = list(left_out, a, b, place + 64 * half, others);
    }
    store_bytes(to, _mm512_or_si512(codes[0], _mm512_slli_epi16(codes[1], 4)));
    return others;
}
#endif

/* For each panel of a weight [outputs, inputs], `stride` between its rows: the lowest exponent that leaves
 * out the fewest numbers, and how many it leaves out. */
void native_choose_exponents(const uint16_t *weight, int64_t outputs, int64_t inputs, int64_t stride,
                             uint8_t *lowest, int64_t *left_out, int32_t threads) {
#if AMX
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t panel = 0; panel < outputs / PANEL; panel++) {
        int64_t found[128], within = 0, best = -1;
        count_exponents(weight + panel * PANEL * stride, inputs, stride, found);
        for (int e = 0; e < 128; e++) {
            within += found[e] - (e > 7 ? found[e - 8] : 0);
            if (within > best) best = within, lowest[panel] = (uint8_t)most(0, e - 7);
        }
        left_out[panel] = inputs * PANEL - best;
    }
#endif
}

/* Into runs and others: the parts of `w` as compressed.h has them, of which `lowest` and `starts` are filled.
 * There is room for each panel's others and one more, which ends them. */
void native_compress(const uint16_t *weight, int64_t stride, const compressed *w, uint8_t *to,
                     other_number *others, int32_t threads) {
#if AMX
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t panel = 0; panel < w->outputs / PANEL; panel++) {
        const bytes lowest = _mm512_set1_epi8((char)w->lowest[panel]);
        const uint16_t *from = weight + panel * PANEL * stride;
        uint8_t *run = to + panel * w->inputs * PANEL / RUN * RUN_BYTES;
        other_number *next = others + w->starts[panel];
        int64_t place = 0;
        for (int64_t k = 0; k < w->inputs; k += STEP)
            for (int half = 0; half < 2; half++) {
                bytes rows[16];
                as_operand(from + 16 * half * stride + k, stride, rows);
                for (int i = 0; i < 4; i++, run += RUN_BYTES, place += RUN)
                    next = compress_run(rows + 4 * i, lowest, place, run, next);
            }
        *next = (other_number){UINT32_MAX, 0, 0};
    }
#endif
}

#if AMX
/* 32 inputs of output `lane` of a panel, from their right operands. */
INLINE void copy_row(const uint16_t *near, int64_t lane, uint16_t *to) {
    for (int pair = 0; pair < 16; pair++)
        memcpy(to + 2 * pair, near + lane / 16 * 512 + 32 * pair + lane % 16 * 2, 4);
}
#endif

/* All weights, to y [outputs, inputs]. */
void native_decompress(const compressed *w, uint16_t *y, int32_t threads) {
#if AMX
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t panel = 0; panel < w->outputs / PANEL; panel++) {
        _Alignas(64) uint16_t near[STEP_RUNS * RUN];
        runs of = runs_from(w, panel, 0, w->inputs, near, NULL);
        of.rate = STEP_RUNS;
        for (uint16_t *to = y + panel * PANEL * w->inputs; of.left; to += PANEL, of.to = near) {
            decompress_some(&of, 0, 0);
            for (int64_t lane = 0; lane < PANEL; lane++) copy_row(near, lane, to + lane * w->inputs);
        }
    }
#endif
}

/* y [count, inputs]: the weights of outputs [count]; zeros of those that there are not. */
void native_compressed_rows(const compressed *w, const int64_t *outputs, uint16_t *y, int64_t count,
                            int32_t threads) {
#if AMX
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        _Alignas(64) uint16_t near[STEP_RUNS * RUN];
        if (outputs[i] < 0 || outputs[i] >= w->outputs) {
            memset(y + i * w->inputs, 0, 2 * w->inputs);
            continue;
        }
        const int64_t lane = outputs[i] % PANEL;
        runs of = runs_from(w, outputs[i] / PANEL, 0, w->inputs, near, NULL);
        of.rate = STEP_RUNS;
        for (uint16_t *to = y + i * w->inputs; of.left; to += STEP, of.to = near) {
            decompress_some(&of, 0, 0);
            copy_row(near, lane, to);
        }
    }
#endif
}
