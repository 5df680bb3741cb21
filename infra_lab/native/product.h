/* What the products of a matrix in panels share: into which parts they cut it, and how the rows of
 * x lie. Two products of one matrix, whatever it is kept in, have the same sums in the same
 * order. */
#ifndef INFRA_LAB_PRODUCT_H
#define INFRA_LAB_PRODUCT_H

#include "tile.h"

#define DEPTH 288      /* rows of a panel at a time: DEPTH x WIDTH floats stay in L1 */
#define ROW_BLOCK 512  /* rows of x at a time: with DEPTH they stay in L2 */

/* Of num_rows rows in `tiles` tiles, tile t has those from first_of(t) to first_of(t + 1). The same
 * formula cuts a panel's k rows into parts. */
INLINE int64_t first_of(int64_t t, int64_t size, int64_t count) { return t * size / count; }

/* Rows from which fetching ahead pays. At one row memory alone is the limit, and the processor's
 * own prefetcher follows the stream well. On Intel it stops at every page's end and falls behind
 * as soon as there is more to do: fetching brought 4 rows from 26 ms to 20 (Sapphire Rapids, all
 * of a 135M model's products). On Zen 4 it paid from 8 rows only. */
INLINE int fetching_rows(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("intel") ? 2 : 8;
#else
    return 8;
#endif
}

/* `rows` packed rows of x against `depth` rows of a panel: see tile.h. */
void packed_tile(const float *x, const float *panel, int64_t depth, float *y, int64_t stride,
                 int rows, int columns, int adds, Ahead ahead);

/* Within a parallel region: x [num_rows, k] -> each tile's rows as [k, rows of the tile], so that
 * it reads them as one stream. */
void turn_rows(const float *x, int64_t num_rows, int64_t tiles, int64_t k, float *to);

#endif
