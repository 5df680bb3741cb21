/* PagedAttention for decoding on a CPU: walk the block table, read every key and value once,
 * where it lies, copy nothing. Answers "how does PagedAttention find its keys?" literally.
 *
 * The softmax is the online one (Milakov and Gimelshein 2018): a running maximum, a running
 * sum, and an accumulator that is rescaled when the maximum grows, so the scores of a whole
 * context are never held. Compiled by native.py; plain C and OpenMP, vectorised by the compiler.
 */
#include <stdint.h>

#include "exp.h"

#define CHUNK 64 /* positions whose scores are held at once */

/* scores[j] = q . rows[j]; four rows at a time share the loads of q. */
static inline void dot_rows(const float *restrict q, const float *const *rows, long offset,
                            int count, int head_dim, float *restrict scores) {
    int j = 0;
    for (; j + 4 <= count; j += 4) {
        const float *a = rows[j] + offset, *b = rows[j + 1] + offset;
        const float *c = rows[j + 2] + offset, *d = rows[j + 3] + offset;
        float sa = 0, sb = 0, sc = 0, sd = 0;
#pragma omp simd reduction(+ : sa, sb, sc, sd)
        for (int i = 0; i < head_dim; i++) {
            sa += q[i] * a[i];
            sb += q[i] * b[i];
            sc += q[i] * c[i];
            sd += q[i] * d[i];
        }
        scores[j] = sa, scores[j + 1] = sb, scores[j + 2] = sc, scores[j + 3] = sd;
    }
    for (; j < count; j++) {
        const float *a = rows[j] + offset;
        float sa = 0;
#pragma omp simd reduction(+ : sa)
        for (int i = 0; i < head_dim; i++) sa += q[i] * a[i];
        scores[j] = sa;
    }
}

/* sum[i] += weights[j] * rows[j][i]; four rows at a time share the loads and stores of sum. */
static inline void add_rows(float *restrict sum, const float *const *rows, long offset, int count,
                            int head_dim, const float *restrict weights) {
    int j = 0;
    for (; j + 4 <= count; j += 4) {
        const float *a = rows[j] + offset, *b = rows[j + 1] + offset;
        const float *c = rows[j + 2] + offset, *d = rows[j + 3] + offset;
        float wa = weights[j], wb = weights[j + 1], wc = weights[j + 2], wd = weights[j + 3];
#pragma omp simd
        for (int i = 0; i < head_dim; i++)
            sum[i] += wa * a[i] + wb * b[i] + wc * c[i] + wd * d[i];
    }
    for (; j < count; j++) {
        const float *a = rows[j] + offset;
        float wa = weights[j];
#pragma omp simd
        for (int i = 0; i < head_dim; i++) sum[i] += wa * a[i];
    }
}

typedef struct {
    const float *query;          /* [n, num_heads, head_dim], rows query_stride apart */
    const float *cache;          /* [num_blocks, block_size, 2, num_kv_heads, head_dim] */
    const int64_t *block_tables; /* [n, max_blocks] */
    const int64_t *seq_lens;     /* [n], the query's own token included */
    float *out;                  /* [n, num_heads, head_dim] */
    int64_t query_stride, max_blocks, num_requests;
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    int64_t window;              /* most tokens seen; 0: all */
    float scale;
} Step;

/* One request, the KV heads [first_head, end_head): their keys are read together. */
static inline __attribute__((always_inline)) void attend(const Step *s, int64_t request,
                                                         int64_t first_head, int64_t end_head,
                                                         int head_dim) {
    int64_t group = s->num_heads / s->num_kv_heads;
    int64_t count = (end_head - first_head) * group;
    int64_t length = s->seq_lens[request];
    int64_t begin = s->window > 0 && s->window < length ? length - s->window : 0;
    int64_t slot = 2 * s->num_kv_heads * head_dim;
    const int64_t *table = s->block_tables + request * s->max_blocks;
    float query[count * head_dim], maximum[count], total[count], scores[CHUNK];
    float *out = s->out + (request * s->num_heads + first_head * group) * head_dim;

    for (int64_t h = 0; h < count; h++) {
        const float *q = s->query + request * s->query_stride + (first_head * group + h) * head_dim;
        for (int i = 0; i < head_dim; i++) {
            query[h * head_dim + i] = q[i] * s->scale;
            out[h * head_dim + i] = 0;
        }
        maximum[h] = -1e30f; /* below any score, and finite: its exponential is 0 */
        total[h] = 0;
    }
    for (int64_t start = begin; start < length; start += CHUNK) {
        int n = (int)(length - start < CHUNK ? length - start : CHUNK);
        const float *rows[CHUNK];
        for (int j = 0; j < n; j++) {
            int64_t position = start + j;
            int64_t block = table[position / s->block_size];
            rows[j] = s->cache + (block * s->block_size + position % s->block_size) * slot;
        }
        for (int64_t h = 0; h < count; h++) {
            long key = (first_head + h / group) * head_dim;
            long value = key + s->num_kv_heads * head_dim;
            dot_rows(query + h * head_dim, rows, key, n, head_dim, scores);
            float top = maximum[h];
            for (int j = 0; j < n; j++) top = scores[j] > top ? scores[j] : top;
            float shrink = exp_nonpositive(maximum[h] - top);
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int j = 0; j < n; j++) {
                scores[j] = exp_nonpositive(scores[j] - top);
                sum += scores[j];
            }
            maximum[h] = top;
            total[h] = total[h] * shrink + sum;
            float *o = out + h * head_dim;
            for (int i = 0; i < head_dim; i++) o[i] *= shrink;
            add_rows(o, rows, value, n, head_dim, scores);
        }
    }
    for (int64_t h = 0; h < count; h++)
        for (int i = 0; i < head_dim; i++) out[h * head_dim + i] /= total[h];
}

/* With many requests a task is a request, and its blocks stream through once; with few, a task
 * is one KV head of a request, so that every core has work. */
void paged_decode(const Step *s, int num_threads) {
    int64_t heads = s->num_requests >= 2 * num_threads ? s->num_kv_heads : 1;
    int64_t parts = s->num_kv_heads / heads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
    for (int64_t task = 0; task < s->num_requests * parts; task++) {
        int64_t request = task / parts, first = task % parts * heads;
        /* A constant head_dim lets the compiler unroll; the values are the usual ones. */
        if (s->head_dim == 64) attend(s, request, first, first + heads, 64);
        else if (s->head_dim == 128) attend(s, request, first, first + heads, 128);
        else attend(s, request, first, first + heads, (int)s->head_dim);
    }
}
