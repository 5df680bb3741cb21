/* Vectors as GCC and Clang spell them on any machine: `vec` is one register of floats. */
#ifndef INFRA_LAB_VECTOR_H
#define INFRA_LAB_VECTOR_H

#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define LINE 16 /* floats in a cache line */

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* to[i * to_step + r] = from[r][at + i] for r < 4 and i < 4: a block of a matrix turned in registers,
 * which takes half as long as one number at a time. */
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
#define MIX(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t iquad __attribute__((vector_size(16)));
#define MIX(a, b, i, j, k, l) __builtin_shuffle(a, b, (iquad){i, j, k, l})
#endif
INLINE void turn_block(const float *const from[4], int64_t at, float *to, int64_t to_step) {
    quad a = *(const quad *)(from[0] + at), b = *(const quad *)(from[1] + at);
    quad c = *(const quad *)(from[2] + at), d = *(const quad *)(from[3] + at);
    quad ab = MIX(a, b, 0, 4, 1, 5), cd = MIX(c, d, 0, 4, 1, 5);
    *(quad *)to = MIX(ab, cd, 0, 1, 4, 5);
    *(quad *)(to + to_step) = MIX(ab, cd, 2, 3, 6, 7);
    ab = MIX(a, b, 2, 6, 3, 7), cd = MIX(c, d, 2, 6, 3, 7);
    *(quad *)(to + 2 * to_step) = MIX(ab, cd, 0, 1, 4, 5);
    *(quad *)(to + 3 * to_step) = MIX(ab, cd, 2, 3, 6, 7);
}

/* The same for any number of rows, whose starts `from` holds, and of columns. */
INLINE void turn(const float *const *from, int64_t rows, int64_t columns, float *to,
                 int64_t to_step) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        int64_t i = 0;
        for (; i + 4 <= columns; i += 4)
            turn_block(from + r, i, to + i * to_step + r, to_step);
        for (; i < columns; i++)
            for (int64_t q = r; q < r + 4; q++) to[i * to_step + q] = from[q][i];
    }
    for (; r < rows; r++)
        for (int64_t i = 0; i < columns; i++) to[i * to_step + r] = from[r][i];
}

#endif
