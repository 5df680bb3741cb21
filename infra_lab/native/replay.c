/* Runs kernels one after another as they were recorded, on the first `rows` rows of their tensors:
 * what a CUDA graph is for, on a CPU. A decode step of a small model is some three hundred calls of
 * a few microseconds, and between them an interpreter whose data the weights have just driven out
 * of the cache.
 */
#include "kernels.h"

enum {
    LINEAR,
    RMS_NORM,
    SILU_AND_MUL,
    ROTATE,
    PAGED_ATTENTION,
    QUANTIZED_LINEAR,
    ROUND_ROWS,
    INT8_LINEAR
};

typedef struct {
    int64_t kernel;
    void *pointers[5]; /* the kernel's, in its order; of attention: its Step, then the four that
                          differ between layers */
    int64_t sizes[4]; /* the number of rows first, which a replay replaces; of attention strides */
    float factor; /* eps of the norm, the largest code of rounding */
} Call;

void replay(const Call *calls, int64_t num_calls, int64_t rows, int num_threads) {
    for (const Call *c = calls; c < calls + num_calls; c++) {
        void *const *p = c->pointers;
        const int64_t *n = c->sizes;
        Step step;
        switch (c->kernel) {
        case LINEAR:
            linear(p[0], p[1], p[2], p[3], rows, n[1], n[2], n[3], num_threads);
            break;
        case QUANTIZED_LINEAR:
            quantized_linear(p[0], p[1], p[2], p[3], rows, n[1], num_threads);
            break;
        case INT8_LINEAR:
            int8_linear(p[0], p[1], p[2], p[3], rows, n[1], num_threads);
            break;
        case ROUND_ROWS:
            round_rows(p[0], p[1], rows, n[1], c->factor, num_threads);
            break;
        case RMS_NORM:
            rms_norm(p[0], p[1], p[2], p[3], rows, n[1], n[2], c->factor, num_threads);
            break;
        case SILU_AND_MUL:
            silu_and_mul(p[0], p[1], rows, n[1], n[2], num_threads);
            break;
        case ROTATE:
            rotate(p[0], p[1], p[2], rows, n[1], n[2], n[3], num_threads);
            break;
        case PAGED_ATTENTION:
            step = *(const Step *)p[0];
            step.query = p[1];
            step.key_value = p[2];
            step.cache = p[3];
            step.out = p[4];
            step.query_stride = n[0];
            step.key_value_stride = n[1];
            paged_attention(&step, num_threads);
            break;
        }
    }
}
