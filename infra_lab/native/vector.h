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

#endif
