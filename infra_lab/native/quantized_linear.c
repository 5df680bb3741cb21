/* y = x W for a W of 2 to 8 bits a weight: codes stay packed in memory and become numbers in
 * registers or, for many rows, in L1.
 *
 * Answers "why does a 4-bit model decode faster, though it computes more?": a step of one row is
 * bound by the bytes of W, and these are a sixth of what fp32 has. From a dozen rows on decoding is
 * what quantization costs; decoding a part once serves all rows of a block. Panels, parts and the
 * order of every sum are linear.c's, so y is to the bit the product with the decoded matrix.
 */
#include "decode.h"
#include "kernels.h"
#include "product.h"

#define FUSED_ROWS 4 /* up to here weights go from registers straight into the sums */
/* How far ahead a fused tile fetches. Arithmetic keeps it at a third of what memory could give, and
 * yet the processor's prefetcher, which stops at every page's end, falls behind: fetching brought
 * one row of all of a 135M model's products from 14.5 ms to 9.4 (Sapphire Rapids, one core). */
#define BYTES_AHEAD 3072
#define GROUPS_AHEAD 8
#define WORTH_SHARING 16384 /* numbers from which a second thread pays for being woken */

/* One panel of W. */
typedef struct {
    const QuantizedMatrix *w;
    const uint8_t *codes;
    const uint8_t *factors; /* [num_groups, scales and then shifts, WIDTH] */
} Panel;

static Panel panel_at(const QuantizedMatrix *w, int64_t p) {
    int64_t bytes = w->num_groups * group_bytes(w->shift, w->half_factors);
    return (Panel){w, w->codes + p * w->k * row_bytes(w->coding),
                   (const uint8_t *)w->factors + p * bytes};
}

INLINE const uint8_t *factors_at(Panel panel, int64_t group, const int shift) {
    return panel.factors + group * group_bytes(shift, panel.w->half_factors);
}

/* Rows begin to end of a panel -> weights [end - begin, WIDTH]. `scattered`: the groups' columns
 * are not consecutive. */
INLINE void decode(Panel panel, const int coding, const int shift, const int scattered,
                   int64_t begin, int64_t end, float *restrict weights) {
    const QuantizedMatrix *w = panel.w;
    const Values values = values_from(w->values, coding);
    const uint8_t *codes = panel.codes + begin * row_bytes(coding);
    for (int64_t i = begin; i < end;) {
        int64_t group = scattered ? w->groups[i] : i / w->group_size;
        int64_t stop = scattered ? i + 1 : (group + 1) * w->group_size;
        const Group g = group_at(factors_at(panel, group, shift), shift, w->half_factors);
        for (stop = stop < end ? stop : end; i < stop; i++) {
            vec low, high;
            decode_row(codes, coding, shift, &values, &g, &low, &high);
            ((vec *)weights)[0] = low;
            ((vec *)weights)[1] = high;
            codes += row_bytes(coding);
            weights += WIDTH;
        }
    }
}

/* The same, multiplied at once: `rows` packed rows of x, of which x has number `begin`. */
INLINE void fused_tile(Panel panel, const int coding, const int shift, int64_t begin, int64_t end,
                       const float *x, float *y, int64_t stride, const int rows, int columns,
                       int adds) {
    const QuantizedMatrix *w = panel.w;
    const Values values = values_from(w->values, coding);
    const uint8_t *codes = panel.codes + begin * row_bytes(coding);
    vec low[FUSED_ROWS], high[FUSED_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) low[r] = high[r] = (vec){0};
    for (int64_t i = begin; i < end;) {
        int64_t group = i / w->group_size, stop = (group + 1) * w->group_size;
        const Group g = group_at(factors_at(panel, group, shift), shift, w->half_factors);
        for (int64_t l = 0; l < group_bytes(shift, w->half_factors); l += 4 * LINE)
            __builtin_prefetch(factors_at(panel, group + GROUPS_AHEAD, shift) + l, 0, 3);
        for (stop = stop < end ? stop : end; i < stop; i++) {
            __builtin_prefetch(codes + BYTES_AHEAD, 0, 3);
            vec a, b;
            decode_row(codes, coding, shift, &values, &g, &a, &b);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                low[r] += x[r] * a;
                high[r] += x[r] * b;
            }
            codes += row_bytes(coding);
            x += rows;
        }
    }
    keep_sums(low, high, y, stride, rows, columns, adds);
}

/* The pairs that there is code for; others go through a table, which any numbers fit in. */
#if HAS_E4M3
#define CONVERTED(DO) DO(E4M3, NONE) CONVERTED_EVERYWHERE(DO)
#else
#define CONVERTED(DO) CONVERTED_EVERYWHERE(DO)
#endif
#define CONVERTED_EVERYWHERE(DO)                                                                  \
    DO(NIBBLES, NONE) DO(NIBBLES, ZEROS) DO(NIBBLES, OFFSETS) DO(NIBBLES, EXACT)                  \
    DO(SIGNED, NONE) DO(SIGNED, ZEROS) DO(SIGNED, EXACT) DO(UNSIGNED, ZEROS) DO(UNSIGNED, EXACT)
#define LOOKED_UP(DO) DO(TABLE, NONE) DO(TABLE, ZEROS) DO(TABLE, OFFSETS)
#define PAIR(coding, shift) ((coding)*4 + (shift))

/* Whether this processor's code has the pair: what a matrix must be packed for. */
int decodes(int coding, int shift) {
    switch (PAIR(coding, shift)) {
#define CASE(coding, shift) case PAIR(coding, shift):
        CONVERTED(CASE) LOOKED_UP(CASE) return 1;
#undef CASE
    }
    return 0;
}

/* Whether factors may be fp16. */
int reads_halves(void) { return HAS_HALVES; }

static void decode_part(Panel panel, int64_t begin, int64_t end, float *weights) {
    switch (PAIR(panel.w->coding, panel.w->shift)) {
#define CASE(coding, shift)                                               \
    case PAIR(coding, shift):                                             \
        if (panel.w->groups) decode(panel, coding, shift, 1, begin, end, weights); \
        else decode(panel, coding, shift, 0, begin, end, weights);        \
        break;
        CONVERTED(CASE) LOOKED_UP(CASE)
#undef CASE
    }
}

static int is_fused(const QuantizedMatrix *w, int64_t rows) {
    return rows <= FUSED_ROWS && !w->groups && w->coding != TABLE;
}

static void multiply_fused(Panel panel, int64_t begin, int64_t end, const float *x, float *y,
                           int64_t stride, int rows, int columns, int adds) {
    switch (PAIR(panel.w->coding, panel.w->shift) * FUSED_ROWS + rows - 1) {
#define TILE(coding, shift, n)                                                               \
    case PAIR(coding, shift) * FUSED_ROWS + n - 1:                                           \
        fused_tile(panel, coding, shift, begin, end, x, y, stride, n, columns, adds);        \
        break;
#define CASE(coding, shift)                                                                  \
    TILE(coding, shift, 1) TILE(coding, shift, 2) TILE(coding, shift, 3) TILE(coding, shift, 4)
        CONVERTED(CASE)
#undef CASE
#undef TILE
    }
}

/* One panel of W against one block of packed rows: see linear.c. */
static void multiply_panel(Panel panel, const float *rows, int64_t num_rows, int64_t tiles,
                           float *y, int64_t stride, int columns, int is_last) {
    const QuantizedMatrix *w = panel.w;
    const int64_t k = w->k, parts = (k + DEPTH - 1) / DEPTH, bytes = row_bytes(w->coding);
    for (int64_t part = 0; part < parts; part++) {
        int64_t begin = first_of(part, k, parts), end = first_of(part + 1, k, parts);
        if (is_fused(w, num_rows)) {
            multiply_fused(panel, begin, end, rows + begin * num_rows, y, stride, (int)num_rows,
                           columns, part > 0);
            continue;
        }
        float weights[DEPTH * WIDTH] __attribute__((aligned(64)));
        decode_part(panel, begin, end, weights);
        int64_t after = is_last && part + 1 == parts ? 0 : first_of(part + 2, k, parts) - end;
        int64_t pace = 256 * (after * bytes / (4 * LINE)) / ((end - begin) * tiles);
        const float *next = (const float *)(panel.codes + end * bytes);
        for (int64_t t = 0; t < tiles; t++) {
            int64_t first = first_of(t, num_rows, tiles), last = first_of(t + 1, num_rows, tiles);
            Ahead ahead = {next + (t * (end - begin) * pace >> 8) * LINE, pace};
            packed_tile(rows + first * k + begin * (last - first), weights, end - begin,
                        y + first * stride, stride, (int)(last - first), columns, part > 0, ahead);
        }
    }
}

/* x: [m, k]; y: [m, n], its rows `stride` apart; scratch: m * k floats, unused for m = 1. */
void quantized_linear(const float *x, const QuantizedMatrix *w, float *y, float *scratch,
                      int64_t m, int64_t stride, int num_threads) {
    int64_t n = w->n, k = w->k, panels = (n + WIDTH - 1) / WIDTH;
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
            multiply_panel(panel_at(w, p), m > 1 ? rows : from, num_rows, tiles,
                           y + block * stride + p * WIDTH, stride, left < WIDTH ? (int)left : WIDTH,
                           p + 1 == panels);
        }
    }
}

/* Columns `indices` [count] of W, each below n -> out [count, k]: rows of the matrix as checkpoints
 * store it, of an embedding. */
void quantized_rows(const QuantizedMatrix *w, const int64_t *indices, int64_t count, float *out,
                    int num_threads) {
    int64_t k = w->k;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (count * k >= WORTH_SHARING)
    for (int64_t r = 0; r < count; r++) {
        Panel panel = panel_at(w, indices[r] / WIDTH);
        float weights[DEPTH * WIDTH] __attribute__((aligned(64)));
        for (int64_t begin = 0; begin < k; begin += DEPTH) {
            int64_t end = begin + DEPTH < k ? begin + DEPTH : k;
            decode_part(panel, begin, end, weights);
            for (int64_t i = begin; i < end; i++)
                out[r * k + i] = weights[(i - begin) * WIDTH + indices[r] % WIDTH];
        }
    }
}

/* codes [n, k], one a byte -> [panels, k, row_bytes(coding)], `added` to each modulo 256; zeros
 * behind column n. */
void pack_codes(const uint8_t *codes, uint8_t *packed, int64_t n, int64_t k, int64_t coding,
                int64_t added, int num_threads) {
    int64_t bytes = row_bytes(coding);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t p = 0; p < (n + WIDTH - 1) / WIDTH; p++) {
        const uint8_t *from = codes + p * WIDTH * k;
        int64_t columns = n - p * WIDTH < WIDTH ? n - p * WIDTH : WIDTH;
        for (int64_t i = 0; i < k; i++) {
            uint8_t row[WIDTH] = {0}, *to = packed + (p * k + i) * bytes;
            for (int64_t c = 0; c < columns; c++) row[c] = (uint8_t)(from[c * k + i] + added);
            for (int64_t c = 0; c < bytes; c++)
                to[c] = coding == NIBBLES ? row[c] | row[c + LANES] << 4 : row[c];
        }
    }
}
