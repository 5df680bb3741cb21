/* How a row of activations becomes integers times a scale. */
#ifndef INFRA_LAB_ROUNDING_H
#define INFRA_LAB_ROUNDING_H

#include "vector.h"

typedef int32_t float_bits __attribute__((may_alias));
#define NOT_FINITE 0x7f800000 /* the bits of infinity; NaN's come after */

/* The bits of the largest magnitude of a row: without the sign, they are in the order of the
 * magnitudes, and infinity and NaN come last, which a comparison of floats passes over. */
INLINE int32_t largest_bits(const float *x, int64_t n) {
    const float_bits *bits = (const float_bits *)x;
    int32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) {
        int32_t magnitude = bits[i] & INT32_MAX;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

INLINE float as_float(int32_t bits) {
    float number;
    __builtin_memcpy(&number, &bits, sizeof number);
    return number;
}

/* x in steps of `divisor`, between -largest and largest. */
INLINE float rounded_ratio(float x, float divisor, float largest) {
    float ratio = x / divisor;
    ratio = ratio > largest ? largest : ratio < -largest ? -largest : ratio;
    return __builtin_rintf(ratio);
}

#endif
