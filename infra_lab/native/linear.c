/* y = x W for a weight packed once, on a CPU: the product that a decode step spends its time in.
 *
 * W [k, n] lies in panels of WIDTH columns, each panel row by row, so it is read as one stream.
 * A tile of y, up to ROWS x WIDTH, stays in registers while the stream passes: two vectors of W
 * and one number of x for each row give two multiply-adds a row. At a few dozen rows arithmetic
 * and memory would take about equally long, one after the other; so while a panel is multiplied
 * the next one is fetched, and they overlap. Answers "how is a GEMM made fast?"
 * (Goto and van de Geijn 2008, whose blocking this is).
 */
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12 /* 24 of 32 registers hold the tile */
#elif defined(__AVX2__)
#define LANES 8
#define ROWS 6 /* 12 of 16 */
#else
#define LANES 4
#define ROWS 8 /* 16 of the 32 that a 64-bit ARM has */
#endif
#define WIDTH (2 * LANES)
#define LINE 16        /* floats in a cache line */
#define DEPTH 288      /* rows of a panel at a time: DEPTH x WIDTH floats stay in L1 */
#define ROW_BLOCK 512  /* rows of x at a time: with DEPTH they stay in L2 */

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* What to fetch meanwhile: from `start`, `pace` / 256 cache lines for each row of the panel, two
 * at most. */
typedef struct {
    const float *start;
    int64_t pace;
} Ahead;

/* One tile: `rows` is a constant in every inlined copy, so that the arrays become registers.
 * x: [depth, rows]. `adds`: add to y instead of overwriting it. */
INLINE void tile(const float *x, const float *panel, int64_t depth, float *y, int64_t stride,
                 const int rows, int columns, int adds, Ahead ahead) {
    vec low[ROWS], high[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        low[r] = high[r] = (vec){0};
        __builtin_prefetch(y + r * stride, 1, 3);
        __builtin_prefetch(y + r * stride + LANES, 1, 3);
    }
    for (int64_t i = 0; i < depth; i++) {
        const float *line = ahead.start + (i * ahead.pace >> 8) * LINE;
        __builtin_prefetch(line, 0, 2);
        if (ahead.pace > 256) __builtin_prefetch(line + LINE, 0, 2);
        const vec *w = (const vec *)(panel + i * WIDTH);
        vec a = w[0], b = w[1];
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            low[r] += x[i * rows + r] * a;
            high[r] += x[i * rows + r] * b;
        }
    }
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

static void any_tile(const float *x, const float *panel, int64_t depth, float *y, int64_t stride,
                     int rows, int columns, int adds, Ahead ahead) {
#define CASE(n) \
    case n: tile(x, panel, depth, y, stride, n, columns, adds, ahead); break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if ROWS > 6
        CASE(7) CASE(8)
#endif
#if ROWS > 8
        CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
#undef CASE
}

/* Rows [first, last) of x as [k, last - first], so that a tile reads it as one stream. */
static void pack_rows(const float *x, int64_t k, int64_t first, int64_t last, float *packed) {
    int64_t rows = last - first;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < k; i++) packed[i * rows + r] = x[(first + r) * k + i];
}

/* One panel of W against one block of packed rows, DEPTH by DEPTH. */
static void multiply_panel(const float *rows, const float *panel, int64_t k, int64_t num_rows,
                           int64_t tiles, float *y, int64_t stride, int columns, int is_last) {
    /* The same parts at any number of rows: a row's sums do not depend on its neighbours. */
    int64_t parts = (k + DEPTH - 1) / DEPTH;
    for (int64_t part = 0; part < parts; part++) {
        int64_t begin = part * k / parts, end = (part + 1) * k / parts;
        int64_t after = is_last && part + 1 == parts ? 0 : (part + 2) * k / parts - end;
        int64_t pace = 256 * (after * WIDTH / LINE) / ((end - begin) * tiles);
        for (int64_t t = 0; t < tiles; t++) {
            int64_t first = t * num_rows / tiles, last = (t + 1) * num_rows / tiles;
            const float *fetched = panel + end * WIDTH + (t * (end - begin) * pace >> 8) * LINE;
            Ahead ahead = {after > 0 ? fetched : panel, pace};
            any_tile(rows + first * k + begin * (last - first), panel + begin * WIDTH, end - begin,
                     y + first * stride, stride, (int)(last - first), columns, part > 0, ahead);
        }
    }
}

/* Columns in a panel: what W must be packed for. */
int panel_width(void) { return WIDTH; }

/* x: [m, k]; packed: [ceil(n / WIDTH), k, WIDTH], zeros behind column n; y: [m, n], its rows
 * `stride` apart; scratch: m * k floats, unused for m = 1. */
void linear(const float *x, const float *packed, float *y, float *scratch, int64_t m, int64_t n,
            int64_t k, int64_t stride, int num_threads) {
    int64_t panels = (n + WIDTH - 1) / WIDTH;
#pragma omp parallel num_threads(num_threads)
    for (int64_t block = 0; block < m; block += ROW_BLOCK) {
        int64_t num_rows = m - block < ROW_BLOCK ? m - block : ROW_BLOCK;
        int64_t tiles = (num_rows + ROWS - 1) / ROWS;
        const float *from = x + block * k;
        float *rows = scratch + block * k;
        if (m > 1) {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < tiles; t++) {
                int64_t first = t * num_rows / tiles, last = (t + 1) * num_rows / tiles;
                pack_rows(from, k, first, last, rows + first * k);
            }
        }
#pragma omp for schedule(static)
        for (int64_t p = 0; p < panels; p++) {
            int64_t left = n - p * WIDTH;
            multiply_panel(m > 1 ? rows : from, packed + p * WIDTH * k, k, num_rows, tiles,
                           y + block * stride + p * WIDTH, stride, left < WIDTH ? (int)left : WIDTH,
                           p + 1 == panels);
        }
    }
}
