/* The register tile that every product here is made of: up to ROWS x WIDTH sums stay in
 * registers while one panel, a stream of rows of WIDTH numbers, passes by. Two vectors of the
 * panel and one number of x for each row give two multiply-adds a row. */
#ifndef INFRA_LAB_TILE_H
#define INFRA_LAB_TILE_H

#include "vector.h"

#if LANES == 16
#define ROWS 12 /* 24 of 32 registers hold the tile */
#elif LANES == 8
#define ROWS 6 /* 12 of 16 */
#else
#define ROWS 8 /* 16 of the 32 that a 64-bit ARM has */
#endif
#define WIDTH (2 * LANES)

/* What to fetch meanwhile: from `start`, `pace` / 256 cache lines for each row of the panel, two
 * at most; nothing if pace is 0. */
typedef struct {
    const float *start;
    int64_t pace;
} Ahead;

/* Writes a tile's sums to y or, if `adds`, adds them: `rows` rows `stride` apart, the first
 * `columns` of each. */
INLINE void keep_sums(vec *low, vec *high, float *y, int64_t stride, const int rows, int columns,
                      int adds) {
    if (columns == WIDTH) {
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vec *to = (vec *)(y + r * stride);
            if (adds) {
                low[r] += to[0];
                high[r] += to[1];
            }
            to[0] = low[r];
            to[1] = high[r];
        }
        return;
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        float whole[WIDTH];
        *(vec *)whole = low[r];
        *(vec *)(whole + LANES) = high[r];
        float *to = y + r * stride;
        for (int c = 0; c < columns; c++) to[c] = adds ? to[c] + whole[c] : whole[c];
    }
}

/* y[r][c] = sum over i < depth of x[i * x_step + r * x_row] * panel[i][c], added to y if `adds`.
 * `rows` is a constant in every inlined copy, so that the arrays become registers, and so must
 * x_step and x_row be. y: its rows `stride` apart, the first `columns` of each written. */
INLINE void tile(const float *x, const int64_t x_step, const int64_t x_row, const float *panel,
                 int64_t depth, float *y, int64_t stride, const int rows, int columns, int adds,
                 Ahead ahead) {
    vec low[ROWS], high[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        low[r] = high[r] = (vec){0};
        __builtin_prefetch(y + r * stride, 1, 3);
        __builtin_prefetch(y + r * stride + LANES, 1, 3);
    }
    for (int64_t i = 0; i < depth; i++) {
        if (ahead.pace > 0) {
            const float *line = ahead.start + (i * ahead.pace >> 8) * LINE;
            __builtin_prefetch(line, 0, 2);
            if (ahead.pace > 256) __builtin_prefetch(line + LINE, 0, 2);
        }
        const vec *w = (const vec *)(panel + i * WIDTH);
        vec a = w[0], b = w[1];
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            low[r] += x[i * x_step + r * x_row] * a;
            high[r] += x[i * x_step + r * x_row] * b;
        }
    }
    keep_sums(low, high, y, stride, rows, columns, adds);
}

/* Runs DO(n) with n = rows as a constant. */
#define ONE_CASE(DO, n) case n: DO(n); break;
#if ROWS == 12
#define WITH_ROWS(rows, DO)                                                                  \
    switch (rows) {                                                                          \
        ONE_CASE(DO, 1) ONE_CASE(DO, 2) ONE_CASE(DO, 3) ONE_CASE(DO, 4) ONE_CASE(DO, 5)      \
        ONE_CASE(DO, 6) ONE_CASE(DO, 7) ONE_CASE(DO, 8) ONE_CASE(DO, 9) ONE_CASE(DO, 10)     \
        ONE_CASE(DO, 11) ONE_CASE(DO, 12)                                                    \
    }
#elif ROWS == 8
#define WITH_ROWS(rows, DO)                                                                  \
    switch (rows) {                                                                          \
        ONE_CASE(DO, 1) ONE_CASE(DO, 2) ONE_CASE(DO, 3) ONE_CASE(DO, 4) ONE_CASE(DO, 5)      \
        ONE_CASE(DO, 6) ONE_CASE(DO, 7) ONE_CASE(DO, 8)                                      \
    }
#else
#define WITH_ROWS(rows, DO)                                                                  \
    switch (rows) {                                                                          \
        ONE_CASE(DO, 1) ONE_CASE(DO, 2) ONE_CASE(DO, 3) ONE_CASE(DO, 4) ONE_CASE(DO, 5)      \
        ONE_CASE(DO, 6)                                                                      \
    }
#endif

#endif
