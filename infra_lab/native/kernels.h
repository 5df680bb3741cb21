/* What this folder's files offer one another; ops.py says what the arrays hold. */
#ifndef INFRA_LAB_KERNELS_H
#define INFRA_LAB_KERNELS_H

#include <stdint.h>

typedef struct {
    const float *query;             /* [num_tokens, num_heads, head_dim], rows query_stride apart */
    const float *key_value;         /* [num_tokens, 2, num_kv_heads, head_dim], likewise */
    float *cache;                   /* [num_blocks, block_size, 2, num_kv_heads, head_dim] */
    float *out;                     /* [num_tokens, num_heads, head_dim] */
    float *scratch;                 /* paged_attention_scratch() floats for each thread */
    const int64_t *slot_mapping;    /* [num_tokens] */
    const int64_t *query_start_loc; /* [n + 1] */
    const int64_t *seq_lens;        /* [n], this step's tokens included */
    const int64_t *block_tables;    /* [n, max_blocks] */
    const int64_t *tasks;           /* [num_tasks, 5]: request, first and end KV head, first and
                                       end token of the request's in this step */
    int64_t query_stride, key_value_stride, max_blocks, num_tokens, num_tasks;
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    int64_t window;                 /* most tokens seen; 0: all */
    float scale;
} Step;

/* A weight of few bits, in linear.c's panels. */
typedef struct {
    const uint8_t *codes;  /* [panels, k, row_bytes(coding)] */
    const float *values;   /* [16] of NIBBLES, [256] of TABLE: what a code means */
    const void *factors;   /* [panels, num_groups, 1 or 2, WIDTH]: scales, then zeros or offsets;
                              fp16 if half_factors, else fp32 */
    const int32_t *groups; /* [k], the group of each row; NULL: row / group_size */
    int64_t n, k, group_size, num_groups;
    int64_t coding, shift; /* decode.h's */
    int64_t half_factors;
} QuantizedMatrix;

/* A weight of int8 codes with a scale for each column, and how its input is rounded. */
typedef struct {
    const uint8_t *codes; /* [panels, ceil(k / 4), WIDTH, 4], each 128 more than what it means */
    const float *scales;  /* [panels, WIDTH] */
    int64_t n, k;
    float largest;        /* of the input's codes */
    float input_scale;    /* 0: from each row */
} Int8Matrix;

void linear(const float *x, const float *packed, float *y, float *scratch, int64_t m, int64_t n,
            int64_t k, int64_t stride, int num_threads);
void quantized_linear(const float *x, const QuantizedMatrix *w, float *y, float *scratch,
                      int64_t m, int64_t stride, int num_threads);
void int8_linear(const float *x, const Int8Matrix *w, float *y, float *scratch, int64_t m,
                 int64_t stride, int num_threads);
void rms_norm(float *x, const float *delta, const float *weight, float *out, int64_t m, int64_t n,
              int64_t delta_stride, float eps, int num_threads);
void silu_and_mul(const float *gate_up, float *out, int64_t m, int64_t n, int64_t stride,
                  int num_threads);
void round_rows(const float *x, float *out, int64_t m, int64_t n, float largest, int num_threads);
void rotate(float *x, const float *cosines, const float *sines, int64_t m, int64_t heads,
            int64_t half, int64_t stride, int num_threads);
void paged_attention(const Step *s, int num_threads);

#endif
