/* y = x W with int8 codes of both and an exact sum: what W8A8 is for.
 *
 * One instruction (VNNI's dpbusd) multiplies and adds four pairs of bytes in each of a register's
 * int32 lanes, four times what a multiply-add of floats does; so a prompt, which is bound by
 * arithmetic, takes a quarter of the time. Each token is rounded to codes on its way in, and its
 * scale and the column's multiply the sum at the end. Answers "why does W8A8 speed up prefill, when
 * W8A16 does not?".
 */
#include "decode.h"
#include "kernels.h"
#include "rounding.h"

#if LANES == 16 && defined(__AVX512VNNI__)
#define HAS_INT8 1
#elif LANES == 8 && defined(__AVXVNNI__)
#define HAS_INT8 1
#else
#define HAS_INT8 0
#endif

#define QUAD 4        /* codes that one lane takes at a time */
#define ROW_BLOCK 512 /* rows of x at a time: their codes stay in L2 */
#define AHEAD 4096    /* bytes of W that one row fetches ahead */
#define AT_ONCE 256   /* columns of x that are rounded in one go */

/* Whether this processor multiplies bytes so. */
int multiplies_int8(void) { return HAS_INT8; }

/* sum + the four products in each lane, of codes from 0 to 255 and the same four from -128 to 127
 * for all lanes. */
INLINE ivec add_products(ivec sum, ivec weights, int32_t x) {
#if HAS_INT8 && LANES == 16
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(x));
#elif HAS_INT8
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32(x));
#else
    return sum + weights * x; /* never called */
#endif
}

/* What a tile of rows is to W: codes [quads, rows], four in each number, and of each row the scale
 * and 128 times the sum of its codes. */
typedef struct {
    int32_t *codes;
    float *scales;
    int32_t *sums;
} Rounded;

/* Row r of a tile's `rows`. One with a number that is not finite gets the scale NaN and codes 0. */
static void round_row(const float *x, const Int8Matrix *w, int64_t r, int64_t rows, Rounded to) {
    const int64_t k = w->k;
    const float largest = w->largest;
    int32_t most = largest_bits(x, k);
    if (most >= NOT_FINITE) {
        for (int64_t q = 0; q < (k + QUAD - 1) / QUAD; q++) to.codes[q * rows + r] = 0;
        ((float_bits *)to.scales)[r] = NOT_FINITE + 1;
        to.sums[r] = 0;
        return;
    }
    float scale = w->input_scale > 0 ? w->input_scale : as_float(most) / largest;
    float divisor = scale > 0 ? scale : 1.0f;
    int32_t sum = 0;
    for (int64_t start = 0; start < k; start += AT_ONCE) {
        int8_t codes[AT_ONCE] = {0};
        int64_t count = k - start < AT_ONCE ? k - start : AT_ONCE;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) {
            int32_t code = (int32_t)rounded_ratio(x[start + i], divisor, largest);
            codes[i] = (int8_t)code;
            sum += code;
        }
        int32_t *quad = to.codes + start / QUAD * rows + r;
        for (int64_t i = 0; i < count; i += QUAD, quad += rows)
            __builtin_memcpy(quad, codes + i, QUAD);
    }
    to.scales[r] = scale;
    to.sums[r] = 128 * sum;
}

INLINE void int8_tile(const uint8_t *panel, int64_t quads, Rounded x, const float *scales, float *y,
                      int64_t stride, const int rows, int columns) {
    ivec low[ROWS], high[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) low[r] = high[r] = (ivec){0};
    const int32_t *codes = x.codes;
    for (int64_t q = 0; q < quads; q++) {
        if (rows <= 2) {
            __builtin_prefetch(panel + AHEAD, 0, 3);
            __builtin_prefetch(panel + AHEAD + 4 * LINE, 0, 3);
        }
        ivec a = ((const ivec *)panel)[0], b = ((const ivec *)panel)[1];
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            low[r] = add_products(low[r], a, codes[r]);
            high[r] = add_products(high[r], b, codes[r]);
        }
        panel += QUAD * WIDTH;
        codes += rows;
    }
    vec sums[ROWS], more[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        /* First the token's scale, then the column's: as anyone would write it down. */
        sums[r] = as_floats(low[r] - x.sums[r]) * x.scales[r];
        more[r] = as_floats(high[r] - x.sums[r]) * x.scales[r];
        ROUNDED(sums[r]);
        ROUNDED(more[r]);
        sums[r] *= ((const vec *)scales)[0];
        more[r] *= ((const vec *)scales)[1];
    }
    keep_sums(sums, more, y, stride, rows, columns, 0);
}

/* x: [m, k]; y: [m, w->n], rows `stride` apart; scratch: m * (quads of k + 2) numbers. */
void int8_linear(const float *x, const Int8Matrix *w, float *y, float *scratch, int64_t m,
                 int64_t stride, int num_threads) {
    int64_t n = w->n, k = w->k, panels = (n + WIDTH - 1) / WIDTH, quads = (k + QUAD - 1) / QUAD;
    Rounded all = {(int32_t *)scratch, scratch + m * quads, (int32_t *)scratch + m * (quads + 1)};
#pragma omp parallel num_threads(num_threads)
    for (int64_t block = 0; block < m; block += ROW_BLOCK) {
        int64_t num_rows = m - block < ROW_BLOCK ? m - block : ROW_BLOCK;
        int64_t tiles = (num_rows + ROWS - 1) / ROWS;
#define TILE_OF(t)                                                                         \
    int64_t first = block + (t)*num_rows / tiles, last = block + ((t) + 1) * num_rows / tiles; \
    int rows = (int)(last - first);                                                        \
    Rounded tile = {all.codes + first * quads, all.scales + first, all.sums + first};
#pragma omp for schedule(static)
        for (int64_t r = 0; r < num_rows; r++) {
            int64_t t = ((r + 1) * tiles - 1) / num_rows; /* the tile that r is in */
            TILE_OF(t)
            round_row(x + (block + r) * k, w, block + r - first, rows, tile);
        }
#pragma omp for schedule(static)
        for (int64_t p = 0; p < panels; p++) {
            int64_t left = n - p * WIDTH;
            int columns = left < WIDTH ? (int)left : WIDTH;
            const uint8_t *panel = w->codes + p * quads * QUAD * WIDTH;
            for (int64_t t = 0; t < tiles; t++) {
                TILE_OF(t)
                float *to = y + first * stride + p * WIDTH;
#define TILE(count) \
    int8_tile(panel, quads, tile, w->scales + p * WIDTH, to, stride, count, columns)
                WITH_ROWS(rows, TILE)
#undef TILE
            }
        }
#undef TILE_OF
    }
}
