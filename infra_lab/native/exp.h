#include <stdint.h>

/* exp(x) for x <= 0 as 2^n 2^f, |f| <= 1/2: a polynomial for 2^f (relative error below 3e-7),
 * n added to the exponent bits. Branch-free, so that a loop over it becomes vector code.
 * Below -87, where exp leaves the normal floats, the result is about 1e-38 instead of less. */
static inline float exp_nonpositive(float x) {
    float t = x * 1.44269504088896341f;
    t = t < -126.0f ? -126.0f : t;
    float n = __builtin_floorf(t + 0.5f);
    float f = t - n;
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    union { int32_t bits; float value; } power = { ((int32_t)n + 127) << 23 };
    return p * power.value;
}
