/* PagedAttention on a CPU, for prompt chunks and decodes in one ragged batch: write the step's
 * keys and values into their slots, then walk each block table and read every key and value
 * where it lies. Answers "how does PagedAttention find its keys?" literally.
 *
 * The softmax is the online one (Milakov and Gimelshein 2018): a running maximum, a running sum
 * and an accumulator that is rescaled when the maximum grows, so the scores of a whole context
 * are never held; over tiles it is FlashAttention (Dao et al. 2022). A chunk of a prompt has
 * rows enough for matrix products on small packed tiles; a decode has one query for each head,
 * reads every key once, and is bound by memory.
 */
#include <omp.h>
#include <string.h>

#include "exp.h"
#include "kernels.h"
#include "tile.h"

#define KEYS 64        /* keys of a tile; all tiles begin at multiples of it */
#define SPAN 32        /* keys a decode handles at a time: with their values they fit L1 */
#define MAX_ROWS 192   /* rows (tokens x heads of a group) of a tile, unless a group is larger */
#define LOWEST -1e30f  /* below any score, and finite: differences with it are no NaN */
#define MIN_VALUE(a, b) ((a) < (b) ? (a) : (b))
#define MAX_VALUE(a, b) ((a) > (b) ? (a) : (b))

typedef struct {
    int64_t request, first_head, end_head, first_token, end_token;
} Task;

/* Where the keys of one position of a request lie, head after head; the values follow. */
INLINE const float *row_at(const Step *s, int64_t request, int64_t position) {
    int64_t block = s->block_tables[request * s->max_blocks + position / s->block_size];
    int64_t slot = block * s->block_size + position % s->block_size;
    return s->cache + slot * 2 * s->num_kv_heads * s->head_dim;
}

#if LANES == 16
#define EACH_LANE(F, d) F(0, d), F(1, d), F(2, d), F(3, d), F(4, d), F(5, d), F(6, d), F(7, d), \
    F(8, d), F(9, d), F(10, d), F(11, d), F(12, d), F(13, d), F(14, d), F(15, d)
#elif LANES == 8
#define EACH_LANE(F, d) F(0, d), F(1, d), F(2, d), F(3, d), F(4, d), F(5, d), F(6, d), F(7, d)
#else
#define EACH_LANE(F, d) F(0, d), F(1, d), F(2, d), F(3, d)
#endif
#if defined(__clang__)
#define PICK(a, b, F, d) __builtin_shufflevector(a, b, EACH_LANE(F, d))
#else
#define PICK(a, b, F, d) __builtin_shuffle(a, b, (ivec){EACH_LANE(F, d)})
#endif
#define OTHER(l, d) ((l) & (d) ? LANES + ((l) ^ (d)) : (l) ^ (d))

/* Over all lanes, halving what is left in each round: one lane after the other takes four times as
 * long. */
#if LANES == 16
#define EACH_HALF(DO) DO(8) DO(4) DO(2) DO(1)
#elif LANES == 8
#define EACH_HALF(DO) DO(4) DO(2) DO(1)
#else
#define EACH_HALF(DO) DO(2) DO(1)
#endif
INLINE float largest(vec a) {
#define MAXIMUM_WITH(d) a = larger(a, PICK(a, a, OTHER, d));
    EACH_HALF(MAXIMUM_WITH)
    return a[0];
}

INLINE float total_of(vec a) {
#define SUM_WITH(d) a += PICK(a, a, OTHER, d);
    EACH_HALF(SUM_WITH)
    return a[0];
}

/* `a`, which begins at position `at`, with `other` in the lanes outside of [low, high). */
INLINE vec within(vec a, int at, int low, int high, float other) {
    ivec lane = (ivec){0} + at;
    for (int i = 0; i < LANES; i++) lane[i] += i;
    ivec is_in = (lane >= low) & (lane < high);
    return (vec)(((ivec)a & is_in) | ((ivec)((vec){0} + other) & ~is_in));
}

/* One row of the online softmax. scores: [count], of which only [low, high) are visible, replaced
 * by their weights; count a multiple of LANES. Returns what the accumulator must be multiplied
 * with before the weighted values are added to it. */
INLINE float weigh(float *scores, int count, int low, int high, float *maximum, float *total) {
    int begin = low / LANES * LANES, end = (high + LANES - 1) / LANES * LANES;
    int is_cut = low > begin || high < end;
    vec top_of = (vec){0} + LOWEST, sum = {0};
    for (int j = begin; j < end; j += LANES) {
        vec *score = (vec *)(scores + j);
        if (is_cut) *score = within(*score, j, low, high, LOWEST);
        top_of = larger(top_of, *score);
    }
    float top = MAX_VALUE(*maximum, largest(top_of));
    for (int j = begin; j < end; j += LANES) {
        vec weights = exps_nonpositive(*(vec *)(scores + j) - top);
        if (is_cut) weights = within(weights, j, low, high, 0); /* exps do not reach 0 */
        *(vec *)(scores + j) = weights;
        sum += weights;
    }
    for (int j = 0; j < begin; j += LANES) *(vec *)(scores + j) = (vec){0};
    for (int j = end; j < count; j += LANES) *(vec *)(scores + j) = (vec){0};
    float shrink = exp_nonpositive(*maximum - top);
    *maximum = top;
    *total = *total * shrink + total_of(sum);
    return shrink;
}

/* ---- decodes ---- */

#define OWN(l, d) ((l) & (d) ? LANES + (l) : (l))
#define HALVE(d)                                                                \
    _Pragma("GCC unroll 16") for (int j = 0; j < LANES; j++) if (!(j & (d)))    \
        a[j] = PICK(a[j], a[j + (d)], OWN, d) + PICK(a[j], a[j + (d)], OTHER, d);

/* Lane j of the result is the sum of a[j]'s lanes: in each round two vectors become one. */
INLINE vec sums_of(vec a[LANES]) {
    HALVE(1)
    HALVE(2)
#if LANES > 4
    HALVE(4)
#endif
#if LANES > 8
    HALVE(8)
#endif
    return a[0];
}

/* Brings the rows of the coming span into L2, a few lines at a time: fetched all at once they
 * would fill the processor's queue of misses, and the arithmetic would wait. */
typedef struct {
    const float **rows; /* NULL: nothing is coming */
    int64_t begin, values, length, lines; /* of a row: the heads' keys, their values, floats of
                                             each; lines to fetch at a time */
    int64_t piece, at;  /* 2 * row + (is it the values?), and how far into it */
} Fetcher;

INLINE void fetch_some(Fetcher *f) {
    if (!f->rows || f->piece >= 2 * SPAN) return;
    const float *from = f->rows[f->piece >> 1] + f->begin + (f->piece & 1) * f->values + f->at;
    for (int64_t i = 0; i < f->lines; i++) __builtin_prefetch(from + i * LINE, 0, 2);
    f->at += f->lines * LINE;
    if (f->at >= f->length) {
        f->at = 0;
        f->piece++;
    }
}

/* Rows of the positions [start, start + SPAN), those behind the last one replaced by it. */
INLINE void find_rows(const Step *s, int64_t request, int64_t start, const float **rows) {
    int64_t last = s->seq_lens[request] - 1;
    for (int64_t j = 0; j < SPAN; j++) rows[j] = row_at(s, request, MIN_VALUE(start + j, last));
}

INLINE int64_t first_seen(const Step *s, int64_t request) {
    int64_t length = s->seq_lens[request];
    return s->window > 0 && s->window < length ? length - s->window : 0;
}

/* One query token of one request against the KV heads [first_head, end_head). `vectors` of LANES
 * floats make a head; it is a constant in the usual inlined copies. While one span is read the
 * next one is fetched; behind the last, the first of request `following`, if that is not -1. */
INLINE void attend_decode(const Step *s, const Task *task, int64_t following, float *scratch,
                          const int vectors) {
    int64_t head_dim = vectors * LANES, values = s->num_kv_heads * head_dim;
    int64_t group = s->num_heads / s->num_kv_heads;
    int64_t first_row = task->first_head * group, count = task->end_head * group - first_row;
    int64_t token = s->query_start_loc[task->request] + task->first_token;
    int64_t length = s->seq_lens[task->request], begin = first_seen(s, task->request);
    float *query = scratch, *maximum = query + count * head_dim, *total = maximum + count;
    const float *from = s->query + token * s->query_stride + first_row * head_dim;
    float *out = s->out + (token * s->num_heads + first_row) * head_dim;
    float scores[SPAN];
    const float *both[2][SPAN], **rows = both[0], **coming = both[1];
    int64_t length_of_heads = (task->end_head - task->first_head) * head_dim;
    /* 2 * SPAN * length floats in 2 * SPAN * count calls. */
    Fetcher fetcher = {coming, task->first_head * head_dim, values, length_of_heads,
                       (length_of_heads / LINE + count - 1) / count, 0, 0};

    for (int64_t i = 0; i < count * head_dim; i++) {
        query[i] = from[i] * s->scale;
        out[i] = 0;
    }
    for (int64_t h = 0; h < count; h++) {
        maximum[h] = LOWEST;
        total[h] = 0;
    }
    find_rows(s, task->request, begin, rows);
    for (int64_t start = begin; start < length; start += SPAN) {
        int n = (int)MIN_VALUE(length - start, SPAN);
        int padded = (n + LANES - 1) / LANES * LANES;
        if (start + SPAN < length) find_rows(s, task->request, start + SPAN, coming);
        else if (following >= 0) find_rows(s, following, first_seen(s, following), coming);
        else fetcher.rows = 0;
        if (fetcher.rows) fetcher.rows = coming;
        fetcher.piece = fetcher.at = 0;
        for (int64_t h = 0; h < count; h++) {
            int64_t key_at = (task->first_head + h / group) * head_dim;
            vec q[vectors];
            for (int v = 0; v < vectors; v++) q[v] = *(vec *)(query + h * head_dim + v * LANES);
            for (int j = 0; j < padded; j += LANES) {
                vec sums[LANES];
#pragma GCC unroll 16
                for (int l = 0; l < LANES; l++) {
                    const vec *key = (const vec *)(rows[j + l] + key_at);
                    sums[l] = q[0] * key[0];
                    for (int v = 1; v < vectors; v++) sums[l] += q[v] * key[v];
                    fetch_some(&fetcher);
                }
                *(vec *)(scores + j) = sums_of(sums);
            }
            float shrink = weigh(scores, padded, 0, n, maximum + h, total + h);
            vec *sum = (vec *)(out + h * head_dim), acc[vectors];
            for (int v = 0; v < vectors; v++) acc[v] = sum[v] * shrink;
            for (int j = 0; j < n; j++) {
                const vec *value = (const vec *)(rows[j] + values + key_at);
                for (int v = 0; v < vectors; v++) acc[v] += scores[j] * value[v];
                fetch_some(&fetcher);
            }
            for (int v = 0; v < vectors; v++) sum[v] = acc[v];
        }
        const float **swapped = rows;
        rows = coming;
        coming = swapped;
    }
    for (int64_t h = 0; h < count; h++)
        for (int64_t i = 0; i < head_dim; i++) out[h * head_dim + i] /= total[h];
}

/* ---- chunks of a prompt ---- */

/* Queries of `tokens` tokens, token after token and the heads of a group side by side, scaled and
 * packed in tiles of [head_dim, rows of the tile]. */
static void pack_queries(const Step *s, int64_t token, int64_t head, int64_t num_rows,
                         int64_t tiles, float *packed) {
    int64_t group = s->num_heads / s->num_kv_heads;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t first = t * num_rows / tiles, rows = (t + 1) * num_rows / tiles - first;
        const float *from[ROWS];
        for (int64_t r = 0; r < rows; r++) {
            int64_t row = first + r;
            from[r] = s->query + (token + row / group) * s->query_stride +
                      (head * group + row % group) * s->head_dim;
        }
        turn(from, rows, s->head_dim, packed + first * s->head_dim, rows);
    }
    for (int64_t i = 0; i < num_rows * s->head_dim; i++) packed[i] *= s->scale;
}

/* Keys [start, start + n) of one head as panels [head_dim, WIDTH], their values as panels
 * [KEYS, WIDTH]. */
static void pack_keys_and_values(const Step *s, int64_t request, int64_t head, int64_t start,
                                 int64_t n, float *keys, float *values) {
    int64_t head_dim = s->head_dim;
    const float *rows[KEYS];
    for (int64_t j = 0; j < n; j++) {
        rows[j] = row_at(s, request, start + j) + head * head_dim;
        const float *value = rows[j] + s->num_kv_heads * head_dim;
        for (int64_t i = 0; i < head_dim; i += WIDTH)
            memcpy(values + (i / WIDTH * KEYS + j) * WIDTH, value + i,
                   MIN_VALUE(head_dim - i, WIDTH) * sizeof(float));
    }
    for (int64_t j = 0; j < n; j += WIDTH)
        turn(rows + j, MIN_VALUE(n - j, WIDTH), head_dim, keys + j * head_dim, WIDTH);
}

static void score_tile(const float *queries, const float *keys, int64_t head_dim, float *scores,
                       int rows) {
#define TILE(n) tile(queries, n, 1, keys, head_dim, scores, KEYS, n, WIDTH, 0, (Ahead){0, 0})
    WITH_ROWS(rows, TILE)
#undef TILE
}

static void value_tile(const float *weights, const float *values, int64_t count, float *sums,
                       int64_t stride, int rows) {
#define TILE(n) tile(weights, 1, KEYS, values, count, sums, stride, n, WIDTH, 1, (Ahead){0, 0})
    WITH_ROWS(rows, TILE)
#undef TILE
}

/* Tokens [first_token, end_token) of a request's chunk, all heads of one group. */
static void attend_chunk(const Step *s, const Task *task, int64_t head, float *scratch) {
    int64_t head_dim = s->head_dim, group = s->num_heads / s->num_kv_heads;
    int64_t padded = (head_dim + WIDTH - 1) / WIDTH * WIDTH;
    int64_t token = s->query_start_loc[task->request] + task->first_token;
    int64_t in_step = s->query_start_loc[task->request + 1] - s->query_start_loc[task->request];
    /* Bottom-right alignment: the chunk's last token sees the whole sequence. */
    int64_t position = s->seq_lens[task->request] - in_step + task->first_token;
    int64_t num_rows = (task->end_token - task->first_token) * group;
    int64_t tiles = (num_rows + ROWS - 1) / ROWS;
    float *queries = scratch, *sums = queries + num_rows * head_dim;
    float *scores = sums + num_rows * padded, *maximum = scores + ROWS * KEYS;
    float *total = maximum + num_rows, *keys = total + num_rows, *values = keys + KEYS * head_dim;

    pack_queries(s, token, head, num_rows, tiles, queries);
    memset(sums, 0, num_rows * padded * sizeof(float));
    memset(keys, 0, KEYS * (head_dim + padded) * sizeof(float));
    for (int64_t r = 0; r < num_rows; r++) {
        maximum[r] = LOWEST;
        total[r] = 0;
    }
    int64_t end = position + (task->end_token - task->first_token);
    int64_t oldest = s->window > 0 && position + 1 > s->window ? position + 1 - s->window : 0;
    for (int64_t start = oldest / KEYS * KEYS; start < end; start += KEYS) {
        pack_keys_and_values(s, task->request, head, start, MIN_VALUE(end - start, KEYS), keys,
                             values);
        for (int64_t t = 0; t < tiles; t++) {
            int64_t first = t * num_rows / tiles, last = (t + 1) * num_rows / tiles;
            int rows = (int)(last - first);
            /* What the tile's last row sees of this chunk, in whole vectors. */
            int64_t seen = MIN_VALUE(position + (last - 1) / group + 1 - start, KEYS);
            if (seen <= 0) continue;
            int count = (int)((seen + LANES - 1) / LANES * LANES);
            for (int64_t p = 0; p * WIDTH < count; p++)
                score_tile(queries + first * head_dim, keys + p * WIDTH * head_dim, head_dim,
                           scores + p * WIDTH, rows);
            for (int64_t r = 0; r < rows; r++) {
                int64_t row = first + r, at = position + row / group - start;
                int64_t low = s->window > 0 ? MAX_VALUE(at + 1 - s->window, 0) : 0;
                int64_t high = MIN_VALUE(at + 1, count);
                float *weights = scores + r * KEYS;
                if (low >= high) {
                    memset(weights, 0, count * sizeof(float));
                    continue;
                }
                float shrink =
                    weigh(weights, count, (int)low, (int)high, maximum + row, total + row);
                vec *sum = (vec *)(sums + row * padded);
                for (int64_t v = 0; v < padded / LANES; v++) sum[v] *= shrink;
            }
            for (int64_t i = 0; i < padded; i += WIDTH)
                value_tile(scores, values + i * KEYS, seen, sums + first * padded + i, padded,
                           rows);
        }
    }
    for (int64_t row = 0; row < num_rows; row++) {
        float *to = s->out + ((token + row / group) * s->num_heads + head * group + row % group) *
                                 head_dim;
        float share = 1 / total[row];
        for (int64_t i = 0; i < head_dim; i++) to[i] = sums[row * padded + i] * share;
    }
}

/* ---- the step ---- */

/* Tokens of a chunk that one task takes. */
int64_t paged_attention_tokens(int64_t num_heads, int64_t num_kv_heads) {
    return MAX_VALUE(MAX_ROWS / (num_heads / num_kv_heads), 1);
}

/* Floats that each thread needs. */
int64_t paged_attention_scratch(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
    int64_t group = num_heads / num_kv_heads;
    int64_t rows = paged_attention_tokens(num_heads, num_kv_heads) * group;
    int64_t padded = (head_dim + WIDTH - 1) / WIDTH * WIDTH;
    int64_t chunk = rows * (head_dim + padded + 2) + ROWS * KEYS + KEYS * (head_dim + padded);
    return MAX_VALUE(chunk, num_heads * (head_dim + 2));
}

void paged_attention(const Step *s, int num_threads) {
    int64_t row = 2 * s->num_kv_heads * s->head_dim;
    int64_t floats = paged_attention_scratch(s->num_heads, s->num_kv_heads, s->head_dim);
    if (s->num_tasks < num_threads) num_threads = (int)s->num_tasks;
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < s->num_tokens; t++)
            memcpy(s->cache + s->slot_mapping[t] * row, s->key_value + t * s->key_value_stride,
                   row * sizeof(float));
        float *scratch = s->scratch + floats * omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < s->num_tasks; i++) {
            const Task *task = (const Task *)s->tasks + i;
            int is_decode = s->query_start_loc[task->request + 1] ==
                            s->query_start_loc[task->request] + 1;
            /* What this thread will probably do next. */
            int64_t following = i + num_threads < s->num_tasks ? (task + num_threads)->request : -1;
            if (is_decode && s->head_dim == 64)
                attend_decode(s, task, following, scratch, 64 / LANES);
            else if (is_decode && s->head_dim == 128)
                attend_decode(s, task, following, scratch, 128 / LANES);
            else if (is_decode && s->head_dim % LANES == 0)
                attend_decode(s, task, following, scratch, (int)(s->head_dim / LANES));
            else
                for (int64_t head = task->first_head; head < task->end_head; head++)
                    attend_chunk(s, task, head, scratch);
        }
    }
}
