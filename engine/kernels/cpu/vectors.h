/* Vectors of 16 lanes for AVX-512 VNNI, AVX-VNNI or plain AVX2, under the same names.
 *
 *   bytes   64 bytes: for each lane four codes, unsigned
 *   ints    16 sums, int32
 *   floats  16 numbers, float32
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))
/* A loop of a few turns, known at compile time, whose counter is a constant in each. */
#define UNROLLED(i, count) _Pragma("GCC unroll 12") for (int i = 0; i < (count); i++)

enum { F32 = 0, BF16 = 1, F16 = 2 };

/* Four int8 of an activation, the same for every lane. */
INLINE int32_t four(const int8_t *x) {
    int32_t found;
    memcpy(&found, x, sizeof found);
    return found;
}

/* e4m3 has float16's form with a bias of 7 in place of 15: moved there, 2^-8 times the number. */
INLINE __m256i e4m3_as_float16(const uint8_t *from) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
    return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

#define INSTRUCTIONS "AVX-512 VNNI"
#define WIDE_TILES 1

typedef __m512i bytes;
typedef __m512i ints;
typedef __m512 floats;

INLINE bytes load_bytes(const uint8_t *from) { return _mm512_loadu_si512(from); }
INLINE void store_bytes(uint8_t *to, bytes b) { _mm512_storeu_si512(to, b); }
INLINE bytes less_bytes(bytes a, bytes b) { return _mm512_sub_epi8(a, b); }
INLINE bytes low_nibbles(bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
INLINE bytes high_nibbles(bytes b) { return low_nibbles(_mm512_srli_epi16(b, 4)); }

INLINE ints no_ints(void) { return _mm512_setzero_si512(); }
INLINE ints load_ints(const int32_t *from) { return _mm512_loadu_si512(from); }
INLINE ints splat(int32_t value) { return _mm512_set1_epi32(value); }
INLINE void store_ints(int32_t *to, ints a) { _mm512_storeu_si512(to, a); }
INLINE void store_codes(int8_t *to, ints a) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(a));
}
INLINE ints plus(ints a, ints b) { return _mm512_add_epi32(a, b); }
INLINE ints larger_ints(ints a, ints b) { return _mm512_max_epi32(a, b); }
INLINE ints shifted_right(ints a) { return _mm512_srai_epi32(a, 8); }
INLINE ints minus(ints a, ints b) { return _mm512_sub_epi32(a, b); }
INLINE ints times(ints a, ints b) { return _mm512_mullo_epi32(a, b); }
INLINE ints joined(ints high, ints low) {
    return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}
INLINE ints widened(const uint8_t *from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
}
/* sum + the products of four codes and four activations, in every lane; codes up to 15. Not by its
 * intrinsic: for that gcc 12 moves every sum to another register and back, in the innermost loop. */
INLINE ints dot_nibbles(ints sum, bytes codes, int32_t x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(_mm512_set1_epi32(x)));
    return sum;
}
/* The same for codes up to 255. */
INLINE ints dot_bytes(ints sum, bytes codes, int32_t x) { return dot_nibbles(sum, codes, x); }

INLINE ints truncated(floats a) { return _mm512_cvttps_epi32(a); }
INLINE ints size_bits(floats a) {
    return _mm512_and_si512(_mm512_castps_si512(a), splat(0x7fffffff));
}
INLINE floats from_bits(ints a) { return _mm512_castsi512_ps(a); }
INLINE ints bits_of(floats a) { return _mm512_castps_si512(a); }
INLINE ints exponents(ints a) { return _mm512_slli_epi32(a, 23); }
INLINE floats no_floats(void) { return _mm512_setzero_ps(); }
INLINE floats as_floats(ints a) { return _mm512_cvtepi32_ps(a); }
INLINE floats scaled(floats a, floats b) { return _mm512_mul_ps(a, b); }
INLINE floats less(floats a, floats b) { return _mm512_sub_ps(a, b); }
INLINE floats product_plus(floats a, floats b, floats sum) { return _mm512_fmadd_ps(a, b, sum); }
INLINE floats quotient(floats a, floats b) { return _mm512_div_ps(a, b); }
INLINE floats plus_scaled(floats sum, floats a, float b) {
    return _mm512_fmadd_ps(a, _mm512_set1_ps(b), sum);
}
/* Not by its intrinsic: gcc 12 then loads an operand again for each product of it, or keeps some
 * of many sums in memory. */
INLINE floats plus_product(floats sum, floats a, floats b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
/* b where one of them is NaN */
INLINE floats larger(floats a, floats b) { return _mm512_max_ps(a, b); }
INLINE floats smaller(floats a, floats b) { return _mm512_min_ps(a, b); }
/* 0 where `of` is below the limit */
INLINE floats none_below(float limit, floats of, floats a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(of, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
}
INLINE floats splat_float(float value) { return _mm512_set1_ps(value); }
INLINE floats load_floats(const float *from) { return _mm512_loadu_ps(from); }
INLINE void store_floats(float *to, floats a) { _mm512_storeu_ps(to, a); }

/* 16 numbers to pick from by the low four bits of each lane. */
typedef __m512 table;
INLINE table load_table(const float *from) { return _mm512_loadu_ps(from); }
INLINE floats picked(table from, ints places) { return _mm512_permutexvar_ps(places, from); }
INLINE ints shifted(ints a) { return _mm512_srli_epi32(a, 4); }

INLINE floats from_e4m3(const uint8_t *from) { return _mm512_cvtph_ps(e4m3_as_float16(from)); }
INLINE floats from_int8(const int8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
INLINE floats from_float16s(const uint16_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
INLINE floats even_bfloat16s(bytes both) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
}
INLINE floats odd_bfloat16s(bytes both) {
    return _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)));
}
INLINE floats from_bfloat16s(const uint16_t *from) {
    return even_bfloat16s(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)));
}
/* To nearest, ties to even; NaN stays NaN: as to_bfloat16 of numbers.h, bit by bit. */
INLINE __m256i rounded_bfloat16s(floats a) {
    const ints bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), splat(1));
    const ints rounded = _mm512_srli_epi32(plus(bits, plus(odd, splat(0x7fff))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, splat(0x7fc0)));
}
/* The same where the smallest numbers may become 0, which the processor's own instruction makes them. */
INLINE __m256i to_bfloat16s(floats a) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(a);
#else
    return rounded_bfloat16s(a);
#endif
}
INLINE void store_16_bits(uint16_t *to, floats a, int type, const int is_exact) {
    const __m256i found = type == F16 ? _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)
                          : is_exact  ? rounded_bfloat16s(a)
                                      : to_bfloat16s(a);
    _mm256_storeu_si256((__m256i *)to, found);
}
INLINE __m256 folded(floats a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#ifdef __AVXVNNI__
#define INSTRUCTIONS "AVX-VNNI"
#else
#define INSTRUCTIONS "AVX2"
#endif
#define WIDE_TILES 0

typedef struct { __m256i half[2]; } bytes;
typedef struct { __m256i half[2]; } ints;
typedef struct { __m256 half[2]; } floats;

/* A function whose result's half h is `expression`. */
#define HALVES(type, name, parameters, expression)       \
    INLINE type name parameters {                        \
        type result;                                     \
        UNROLLED(h, 2) result.half[h] = (expression);    \
        return result;                                   \
    }
#define EIGHT(from) _mm_loadl_epi64((const __m128i *)((from) + 8 * h)) /* bytes of half h */

HALVES(bytes, load_bytes, (const uint8_t *from),
       _mm256_loadu_si256((const __m256i *)(from + 32 * h)))
HALVES(bytes, low_nibbles, (bytes b), _mm256_and_si256(b.half[h], _mm256_set1_epi8(15)))
HALVES(bytes, high_nibbles, (bytes b),
       _mm256_and_si256(_mm256_srli_epi16(b.half[h], 4), _mm256_set1_epi8(15)))

HALVES(ints, splat, (int32_t value), _mm256_set1_epi32(value))
HALVES(ints, no_ints, (void), _mm256_setzero_si256())
HALVES(ints, load_ints, (const int32_t *from),
       _mm256_loadu_si256((const __m256i *)(from + 8 * h)))
INLINE void store_ints(int32_t *to, ints a) {
    UNROLLED(h, 2) _mm256_storeu_si256((__m256i *)(to + 8 * h), a.half[h]);
}
INLINE void store_codes(int8_t *to, ints a) {
    const __m256i both = _mm256_packs_epi32(a.half[0], a.half[1]);
    const __m256i ordered = _mm256_permute4x64_epi64(both, 0xd8);
    _mm_storeu_si128((__m128i *)to, _mm_packs_epi16(_mm256_castsi256_si128(ordered),
                                                    _mm256_extracti128_si256(ordered, 1)));
}
HALVES(ints, plus, (ints a, ints b), _mm256_add_epi32(a.half[h], b.half[h]))
HALVES(ints, larger_ints, (ints a, ints b), _mm256_max_epi32(a.half[h], b.half[h]))
HALVES(ints, shifted_right, (ints a), _mm256_srai_epi32(a.half[h], 8))
HALVES(ints, minus, (ints a, ints b), _mm256_sub_epi32(a.half[h], b.half[h]))
HALVES(ints, times, (ints a, ints b), _mm256_mullo_epi32(a.half[h], b.half[h]))
HALVES(ints, joined, (ints high, ints low),
       _mm256_add_epi32(_mm256_slli_epi32(high.half[h], 8), low.half[h]))
HALVES(ints, widened, (const uint8_t *from), _mm256_cvtepu8_epi32(EIGHT(from)))

#ifdef __AVXVNNI__
HALVES(ints, dot_nibbles, (ints sum, bytes codes, int32_t x),
       _mm256_dpbusd_avx_epi32(sum.half[h], codes.half[h], _mm256_set1_epi32(x)))
INLINE ints dot_bytes(ints sum, bytes codes, int32_t x) { return dot_nibbles(sum, codes, x); }
#else
/* Pairs are summed in 16 bits, which two products of 15 by 128 fit and two of 255 by 128 do not. */
#define DOT(nibbles, x, times)                                                                \
    _mm256_madd_epi16(_mm256_maddubs_epi16((nibbles).half[h], _mm256_set1_epi32(x)),          \
                      _mm256_set1_epi16(times))
HALVES(ints, dot_nibbles, (ints sum, bytes codes, int32_t x),
       _mm256_add_epi32(sum.half[h], DOT(codes, x, 1)))
HALVES(ints, dot_bytes, (ints sum, bytes codes, int32_t x),
       _mm256_add_epi32(sum.half[h], _mm256_add_epi32(DOT(low_nibbles(codes), x, 1),
                                                      DOT(high_nibbles(codes), x, 16))))
#endif

HALVES(ints, truncated, (floats a), _mm256_cvttps_epi32(a.half[h]))
HALVES(ints, size_bits, (floats a),
       _mm256_and_si256(_mm256_castps_si256(a.half[h]), _mm256_set1_epi32(0x7fffffff)))
HALVES(floats, from_bits, (ints a), _mm256_castsi256_ps(a.half[h]))
HALVES(ints, bits_of, (floats a), _mm256_castps_si256(a.half[h]))
HALVES(ints, exponents, (ints a), _mm256_slli_epi32(a.half[h], 23))
HALVES(floats, no_floats, (void), _mm256_setzero_ps())
HALVES(floats, as_floats, (ints a), _mm256_cvtepi32_ps(a.half[h]))
HALVES(floats, scaled, (floats a, floats b), _mm256_mul_ps(a.half[h], b.half[h]))
HALVES(floats, less, (floats a, floats b), _mm256_sub_ps(a.half[h], b.half[h]))
HALVES(floats, product_plus, (floats a, floats b, floats sum),
       _mm256_fmadd_ps(a.half[h], b.half[h], sum.half[h]))
HALVES(floats, quotient, (floats a, floats b), _mm256_div_ps(a.half[h], b.half[h]))
HALVES(floats, plus_scaled, (floats sum, floats a, float b),
       _mm256_fmadd_ps(a.half[h], _mm256_set1_ps(b), sum.half[h]))
HALVES(floats, plus_product, (floats sum, floats a, floats b),
       _mm256_fmadd_ps(a.half[h], b.half[h], sum.half[h]))
/* b where one of them is NaN */
HALVES(floats, larger, (floats a, floats b), _mm256_max_ps(a.half[h], b.half[h]))
HALVES(floats, smaller, (floats a, floats b), _mm256_min_ps(a.half[h], b.half[h]))
/* 0 where `of` is below the limit */
HALVES(floats, none_below, (float limit, floats of, floats a),
       _mm256_and_ps(_mm256_cmp_ps(of.half[h], _mm256_set1_ps(limit), _CMP_NLT_UQ), a.half[h]))
HALVES(floats, splat_float, (float value), _mm256_set1_ps(value))
HALVES(floats, load_floats, (const float *from), _mm256_loadu_ps(from + 8 * h))
INLINE void store_floats(float *to, floats a) {
    UNROLLED(h, 2) _mm256_storeu_ps(to + 8 * h, a.half[h]);
}

typedef floats table;
INLINE table load_table(const float *from) { return load_floats(from); }
HALVES(floats, picked, (table from, ints places),
       _mm256_blendv_ps(_mm256_permutevar8x32_ps(from.half[0], places.half[h]),
                        _mm256_permutevar8x32_ps(from.half[1], places.half[h]),
                        _mm256_castsi256_ps(_mm256_slli_epi32(places.half[h], 28))))
HALVES(ints, shifted, (ints a), _mm256_srli_epi32(a.half[h], 4))

INLINE floats from_e4m3(const uint8_t *from) {
    const __m256i wide = e4m3_as_float16(from);
    return (floats){{_mm256_cvtph_ps(_mm256_castsi256_si128(wide)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(wide, 1))}};
}
HALVES(floats, from_int8, (const int8_t *from),
       _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(EIGHT(from))))
HALVES(floats, from_float16s, (const uint16_t *from),
       _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 8 * h))))
HALVES(floats, from_bfloat16s, (const uint16_t *from),
       _mm256_castsi256_ps(_mm256_slli_epi32(
           _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(from + 8 * h))), 16)))
HALVES(floats, even_bfloat16s, (bytes both),
       _mm256_castsi256_ps(_mm256_slli_epi32(both.half[h], 16)))
HALVES(floats, odd_bfloat16s, (bytes both),
       _mm256_castsi256_ps(_mm256_and_si256(both.half[h], _mm256_set1_epi32(-65536))))
INLINE __m128i rounded_bfloat16s(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    const __m256i half = _mm256_add_epi32(_mm256_and_si256(_mm256_srli_epi32(bits, 16), one),
                                          _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i all = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
INLINE void store_16_bits(uint16_t *to, floats a, int type, const int is_exact) {
    UNROLLED(h, 2) {
        const __m128i found = type == BF16 ? rounded_bfloat16s(a.half[h])
                                           : _mm256_cvtps_ph(a.half[h], _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(to + 8 * h), found);
    }
}
INLINE __m256 folded(floats a) { return _mm256_add_ps(a.half[0], a.half[1]); }

#else
#error "no AVX2 on this processor"
#endif

INLINE floats load_numbers(const void *from, int64_t place, int type) {
    if (type == F32) return load_floats((const float *)from + place);
    const uint16_t *source = (const uint16_t *)from + place;
    if (type == F16) return from_float16s(source);
    return from_bfloat16s(source);
}

/* 32 numbers of 16 bits: of bfloat16 the even ones and the odd ones, of float16 those before and
 * those behind. */
INLINE void widen(const uint16_t *from, int type, floats *first, floats *second) {
    if (type == BF16) {
        const bytes both = load_bytes((const uint8_t *)from);
        *first = even_bfloat16s(both), *second = odd_bfloat16s(both);
    } else {
        *first = from_float16s(from), *second = from_float16s(from + LANES);
    }
}

/* The lanes of each, added up: in one order, whatever the processor. */
INLINE __m128 sums_of_four(floats a, floats b, floats c, floats d) {
    const __m256 one = folded(a), two = folded(b), three = folded(c), four = folded(d);
    const __m256 left = _mm256_add_ps(_mm256_unpacklo_ps(one, two), _mm256_unpackhi_ps(one, two));
    const __m256 right =
        _mm256_add_ps(_mm256_unpacklo_ps(three, four), _mm256_unpackhi_ps(three, four));
    const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(left, right, _MM_SHUFFLE(1, 0, 1, 0)),
                                      _mm256_shuffle_ps(left, right, _MM_SHUFFLE(3, 2, 3, 2)));
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}
