/* y = x W for a weight packed once, on a CPU: the product that a decode step spends its time in.
 *
 * W [k, n] lies in panels of WIDTH columns, each panel row by row, so it is read as one stream.
 * At a few dozen rows arithmetic and memory would take about equally long, one after the other;
 * so while a panel is multiplied the next one is fetched, and they overlap. Answers "how is a
 * GEMM made fast?" (Goto and van de Geijn 2008, whose blocking this is).
 */
#include "kernels.h"
#include "product.h"

#define PACKED_AT_ONCE 128 /* columns of x: what is written stays in L1 meanwhile */

void packed_tile(const float *x, const float *panel, int64_t depth, float *y, int64_t stride,
                 int rows, int columns, int adds, Ahead ahead) {
#define TILE(n) tile(x, n, 1, panel, depth, y, stride, n, columns, adds, ahead)
    WITH_ROWS(rows, TILE)
#undef TILE
}

void turn_rows(const float *x, int64_t num_rows, int64_t tiles, int64_t k, float *to) {
#pragma omp for schedule(static) collapse(2)
    for (int64_t t = 0; t < tiles; t++) {
        for (int64_t start = 0; start < k; start += PACKED_AT_ONCE) {
            int64_t first = first_of(t, num_rows, tiles), last = first_of(t + 1, num_rows, tiles);
            int64_t columns = k - start < PACKED_AT_ONCE ? k - start : PACKED_AT_ONCE;
            const float *starts[ROWS];
            for (int64_t r = 0; r < last - first; r++) starts[r] = x + (first + r) * k + start;
            turn(starts, last - first, columns, to + first * k + start * (last - first),
                 last - first);
        }
    }
}

/* One panel of W against one block of packed rows, DEPTH by DEPTH. */
static void multiply_panel(const float *rows, const float *panel, int64_t k, int64_t num_rows,
                           int64_t tiles, float *y, int64_t stride, int columns, int is_last) {
    /* The same parts at any number of rows: a row's sums do not depend on its neighbours. */
    int64_t parts = (k + DEPTH - 1) / DEPTH;
    for (int64_t part = 0; part < parts; part++) {
        int64_t begin = first_of(part, k, parts), end = first_of(part + 1, k, parts);
        int64_t after = is_last && part + 1 == parts ? 0 : first_of(part + 2, k, parts) - end;
        int64_t pace = 256 * (after * WIDTH / LINE) / ((end - begin) * tiles);
        if (num_rows < fetching_rows()) pace = 0;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t first = first_of(t, num_rows, tiles), last = first_of(t + 1, num_rows, tiles);
            const float *fetched = panel + end * WIDTH + (t * (end - begin) * pace >> 8) * LINE;
            packed_tile(rows + first * k + begin * (last - first), panel + begin * WIDTH,
                        end - begin, y + first * stride, stride, (int)(last - first), columns,
                        part > 0, (Ahead){fetched, pace});
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
        if (m > 1) turn_rows(from, num_rows, tiles, k, rows);
#pragma omp for schedule(static)
        for (int64_t p = 0; p < panels; p++) {
            int64_t left = n - p * WIDTH;
            multiply_panel(m > 1 ? rows : from, packed + p * WIDTH * k, k, num_rows, tiles,
                           y + block * stride + p * WIDTH, stride, left < WIDTH ? (int)left : WIDTH,
                           p + 1 == panels);
        }
    }
}
