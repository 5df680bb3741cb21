/* exp(x) for x <= 0 as 2^n 2^f, |f| <= 1/2: a polynomial for 2^f (relative error below 3e-7),
 * n added to the exponent bits. Below -87, where exp leaves the normal floats, the result is
 * about 1e-38 instead of less. */
#ifndef INFRA_LAB_EXP_H
#define INFRA_LAB_EXP_H

#include "vector.h"

#define LOG2_E 1.44269504088896341f
#define POWER_OF_2(f) \
    ((((((f * 1.5403530e-4f + 1.3333558e-3f) * f + 9.6181291e-3f) * f + 5.5504109e-2f) * f + \
       2.4022651e-1f) * f + 6.9314718e-1f) * f + 1.0f)

/* Branch-free, so that a loop over it becomes vector code. */
INLINE float exp_nonpositive(float x) {
    float t = x * LOG2_E;
    t = t < -126.0f ? -126.0f : t;
    int32_t n = (int32_t)(t - 0.5f); /* the nearest, as t <= 0 */
    float f = t - (float)n;
    union { int32_t bits; float value; } power = {(n + 127) << 23};
    return POWER_OF_2(f) * power.value;
}

INLINE vec larger(vec a, vec b) {
    ivec is_a = a > b;
    return (vec)(((ivec)a & is_a) | ((ivec)b & ~is_a));
}

INLINE vec exps_nonpositive(vec x) {
    vec t = larger(x * LOG2_E, (vec){0} - 126.0f);
    ivec n = __builtin_convertvector(t - 0.5f, ivec);
    vec f = t - __builtin_convertvector(n, vec);
    return POWER_OF_2(f) * (vec)((n + 127) << 23);
}

#endif
