/* The small operations between the products, each in one pass over its rows. At one row a
 * layer's handful of torch operations would cost more to start than to do. */
#include "exp.h"
#include "kernels.h"
#include "rounding.h"

#define WORTH_SHARING 16384 /* numbers from which a second thread pays for being woken */

/* x [m, n]; if `delta` [m, n], rows `delta_stride` apart, is given, x += delta first;
 * out = x / sqrt(mean(x^2) + eps) * weight. */
void rms_norm(float *x, const float *delta, const float *weight, float *out, int64_t m, int64_t n,
              int64_t delta_stride, float eps, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (m * n >= WORTH_SHARING)
    for (int64_t r = 0; r < m; r++) {
        float *row = x + r * n, *to = out + r * n;
        float squares = 0;
        if (delta) {
            const float *add = delta + r * delta_stride;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) row[i] += add[i];
        }
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < n; i++) squares += row[i] * row[i];
        float scale = 1.0f / __builtin_sqrtf(squares / n + eps);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = row[i] * scale * weight[i];
    }
}

/* gate_up [m, 2 n], gate first, rows `stride` apart; out [m, n] = silu(gate) * up. */
void silu_and_mul(const float *gate_up, float *out, int64_t m, int64_t n, int64_t stride,
                  int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (m * n >= WORTH_SHARING)
    for (int64_t r = 0; r < m; r++) {
        const float *gate = gate_up + r * stride, *up = gate + n;
        float *to = out + r * n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            /* 1 / (1 + e^-g) without overflow: e^-|g| over and under the fraction bar. */
            float g = gate[i], e = exp_nonpositive(g < 0 ? g : -g);
            to[i] = g * (g < 0 ? e : 1.0f) / (1.0f + e) * up[i];
        }
    }
}

/* out [m, n] = x taken to the nearest multiple, by -largest to largest, of max |row| / largest. A
 * row with a number that is not finite becomes NaN. */
void round_rows(const float *x, float *out, int64_t m, int64_t n, float largest, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (m * n >= WORTH_SHARING)
    for (int64_t r = 0; r < m; r++) {
        const float *row = x + r * n;
        float *to = out + r * n;
        int32_t most = largest_bits(row, n);
        if (most >= NOT_FINITE) {
            for (int64_t i = 0; i < n; i++) ((float_bits *)to)[i] = NOT_FINITE + 1;
            continue;
        }
        float scale = as_float(most) / largest, divisor = scale > 0 ? scale : 1.0f;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = rounded_ratio(row[i], divisor, largest) * scale;
    }
}

/* x [m, heads, 2 half], rows `stride` apart, in place: (a, b) -> (a cos - b sin, b cos + a sin)
 * for each pair (x[i], x[i + half]); cosines, sines [m, 2 half], of which the second half is
 * read: torch's form of the same has the sines of the first half negated. */
void rotate(float *x, const float *cosines, const float *sines, int64_t m, int64_t heads,
            int64_t half, int64_t stride, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) \
    if (m * heads * half >= WORTH_SHARING)
    for (int64_t r = 0; r < m; r++) {
        const float *c = cosines + (2 * r + 1) * half, *s = sines + (2 * r + 1) * half;
        for (int64_t h = 0; h < heads; h++) {
            float *a = x + r * stride + h * 2 * half, *b = a + half;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float rotated = a[i] * c[i] - b[i] * s[i];
                b[i] = b[i] * c[i] + a[i] * s[i];
                a[i] = rotated;
            }
        }
    }
}
