/* From codes to weights, one row of a panel at a time, in registers.
 *
 * A 4-bit code looks up one of 16 numbers that a register or two hold, so that integers, NF4 and
 * MXFP4 cost the same. An 8-bit code is converted; other tables of 256 are looked up in memory.
 * Every operation is rounded as in (values[code] - zero) * scale or values[code] * scale + offset:
 * to the bit what `QuantizedWeight.dequantize` gives. EXACT are offsets where the product needs no
 * rounding, as of a small integer and a scale that came from fp16: there one fused multiply-add
 * gives the same bits.
 */
#ifndef INFRA_LAB_DECODE_H
#define INFRA_LAB_DECODE_H

#include "tile.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { NIBBLES, SIGNED, UNSIGNED, E4M3, TABLE }; /* what a code is: `coding` */
enum { NONE, ZEROS, OFFSETS, EXACT };            /* what comes beside the scales: `shift` */

/* Keeps the compiler from joining what made v with what follows: with -ffp-contract=fast it would
 * fuse a multiply and an add, with -fassociative-math reorder products. */
#if defined(__x86_64__)
#define ROUNDED(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define ROUNDED(v) __asm__("" : "+w"(v))
#else
#define ROUNDED(v) __asm__("" : "+m"(v))
#endif

/* Bytes of one row of a panel; of 4 bits, byte c has column c in its low half, c + LANES in the
 * high one. */
INLINE int64_t row_bytes(int64_t coding) { return coding == NIBBLES ? LANES : WIDTH; }

/* LANES codes of a byte each. */
#if LANES == 16
#define LOADED(bytes) _mm_loadu_si128((const __m128i *)(bytes))
INLINE ivec from_unsigned(const uint8_t *bytes) {
    return (ivec)_mm512_cvtepu8_epi32(LOADED(bytes));
}
INLINE ivec from_signed(const uint8_t *bytes) { return (ivec)_mm512_cvtepi8_epi32(LOADED(bytes)); }
INLINE vec as_floats(ivec i) { return (vec)_mm512_cvtepi32_ps((__m512i)i); }
#elif LANES == 8
#define LOADED(bytes) _mm_loadl_epi64((const __m128i *)(bytes))
INLINE ivec from_unsigned(const uint8_t *bytes) {
    return (ivec)_mm256_cvtepu8_epi32(LOADED(bytes));
}
INLINE ivec from_signed(const uint8_t *bytes) { return (ivec)_mm256_cvtepi8_epi32(LOADED(bytes)); }
INLINE vec as_floats(ivec i) { return (vec)_mm256_cvtepi32_ps((__m256i)i); }
#else
INLINE ivec from_unsigned(const uint8_t *b) { return (ivec){b[0], b[1], b[2], b[3]}; }
INLINE ivec from_signed(const uint8_t *bytes) {
    const int8_t *b = (const int8_t *)bytes;
    return (ivec){b[0], b[1], b[2], b[3]};
}
INLINE vec as_floats(ivec i) { return (vec){i[0], i[1], i[2], i[3]}; }
#endif

/* What codes mean: all numbers in memory, and the first 16 in registers. */
typedef struct {
    const float *all;
    vec first[16 / LANES];
} Values;

INLINE Values values_from(const float *all, const int coding) {
    Values v = {all, {(vec){0}}};
    if (coding == NIBBLES) {
#pragma GCC unroll 4
        for (int i = 0; i < 16 / LANES; i++) v.first[i] = ((const vec *)all)[i];
    }
    return v;
}

/* values[i] for each i, of which the low four bits count. */
INLINE vec one_of_16(const Values *values, ivec i) {
#if LANES == 16
    return (vec)_mm512_permutexvar_ps((__m512i)i, (__m512)values->first[0]);
#elif LANES == 8
    __m256 low = _mm256_permutevar8x32_ps((__m256)values->first[0], (__m256i)i);
    __m256 high = _mm256_permutevar8x32_ps((__m256)values->first[1], (__m256i)i);
    __m256i fourth_bit = _mm256_slli_epi32((__m256i)i, 28);
    return (vec)_mm256_blendv_ps(low, high, (__m256)fourth_bit);
#else
    const float *v = values->all;
    return (vec){v[i[0] & 15], v[i[1] & 15], v[i[2] & 15], v[i[3] & 15]};
#endif
}

INLINE vec one_of_256(const float *values, const uint8_t *bytes) {
    float found[LANES];
    for (int c = 0; c < LANES; c++) found[c] = values[bytes[c]];
    return *(const vec *)found;
}

/* fp8 with 4 bits of exponent is, moved by 7 bits, an fp16 of 2^-8 of its value; subnormal numbers
 * too. Of the two NaNs it makes 480: who has some takes TABLE. */
#if LANES >= 8 && defined(__F16C__)
#define HAS_E4M3 1
INLINE vec from_e4m3(const uint8_t *bytes) {
#if LANES == 16
    __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(LOADED(bytes)), 7);
    wide = _mm256_and_si256(wide, _mm256_set1_epi16((short)0xbfff)); /* the sign is there twice */
    return (vec)_mm512_cvtph_ps(wide) * 256.0f;
#else
    __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(LOADED(bytes)), 7);
    wide = _mm_and_si128(wide, _mm_set1_epi16((short)0xbfff));
    return (vec)_mm256_cvtph_ps(wide) * 256.0f;
#endif
}
#else
#define HAS_E4M3 0
INLINE vec from_e4m3(const uint8_t *bytes) { return (vec){(float)bytes[0]}; } /* never called */
#endif

/* What a group's columns share, for both vectors of a panel's row. */
typedef struct {
    vec scales[2], shifts[2];
} Group;

/* LANES fp16 numbers, where the processor converts them at once. */
#if LANES >= 8 && defined(__F16C__)
#define HAS_HALVES 1
INLINE vec from_halves(const uint8_t *bytes) {
#if LANES == 16
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)bytes));
#else
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)bytes));
#endif
}
#else
#define HAS_HALVES 0
INLINE vec from_halves(const uint8_t *bytes) { return *(const vec *)bytes; } /* never called */
#endif

/* A group's factors in memory. */
INLINE int64_t group_bytes(int64_t shift, int64_t half_factors) {
    return (shift == NONE ? 1 : 2) * WIDTH * (half_factors ? 2 : 4);
}

INLINE vec factor_at(const uint8_t *factors, int64_t half_factors, int64_t i) {
    return half_factors ? from_halves(factors + i * 2 * LANES) : ((const vec *)factors)[i];
}

/* Whether factors are fp16 is asked once a group: less than to compile all loops twice. */
INLINE Group group_at(const uint8_t *factors, const int shift, int64_t half_factors) {
    vec low = factor_at(factors, half_factors, 0), high = factor_at(factors, half_factors, 1);
    Group g = {{low, high}, {low, high}};
    if (shift != NONE) {
        g.shifts[0] = factor_at(factors, half_factors, 2);
        g.shifts[1] = factor_at(factors, half_factors, 3);
    }
    return g;
}

INLINE vec scaled(vec v, const int shift, vec scale, vec by) {
    if (shift == ZEROS) {
        v -= by;
        ROUNDED(v);
    }
    v *= scale;
    if (shift != EXACT) ROUNDED(v);
    if (shift == OFFSETS || shift == EXACT) v += by;
    ROUNDED(v);
    return v;
}

/* One row of a panel -> its WIDTH weights. */
INLINE void decode_row(const uint8_t *codes, const int coding, const int shift,
                       const Values *values, const Group *g, vec *low, vec *high) {
    const uint8_t *next = codes + LANES;
    if (coding == NIBBLES) {
        ivec both = from_unsigned(codes);
        *low = one_of_16(values, both);
        *high = one_of_16(values, both >> 4);
    } else if (coding == SIGNED) {
        *low = as_floats(from_signed(codes));
        *high = as_floats(from_signed(next));
    } else if (coding == UNSIGNED) {
        *low = as_floats(from_unsigned(codes));
        *high = as_floats(from_unsigned(next));
    } else if (coding == E4M3) {
        *low = from_e4m3(codes);
        *high = from_e4m3(next);
    } else {
        *low = one_of_256(values->all, codes);
        *high = one_of_256(values->all, next);
    }
    *low = scaled(*low, shift, g->scales[0], g->shifts[0]);
    *high = scaled(*high, shift, g->scales[1], g->shifts[1]);
}

#endif
