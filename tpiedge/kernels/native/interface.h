// Declares all that the kernels' library exports, as shared_library.py and the callers in Python declare it.
#ifndef TPIEDGE_INTERFACE_H
#define TPIEDGE_INTERFACE_H

#include <stdint.h>

#define TPIEDGE_EXPORT extern "C" __attribute__((visibility("default")))

struct Weight {  // as packed by library.py
    const void *w;
    float *y;
    int64_t is_bf16;
    int64_t stride;
    int64_t rows;
};

struct PanelWeight {  // as packed by library.py
    const uint8_t *data;
    void *y;  // f32; of row-parallel matrices int32 or int64
    int64_t format;  // of panels.h
    int64_t unit_nbytes;  // from one unit to the next
    int64_t rows;
    int64_t cols;
    int64_t rows_per_unit;
    const float *bias;  // of the outputs of a column-parallel matrix, or null
    int64_t exponent;   // of a row-parallel matrix: y is in steps of 2^exponent
    int64_t most;       // and at most so large in 32 bits
    int64_t y_stride;   // of a column-parallel matrix: floats from one token's outputs to the next one's
};

struct PageLayout {  // as packed by kv_pages.py: where in a page of the KV cache a layer's keys and values lie
    int64_t format;        // a KVFormat
    int64_t kv_heads;
    int64_t width;         // of a head
    int64_t positions;     // of a page, a multiple of 64
    int64_t layer_offset;  // bytes, as what follows: from the page to the first key of KV head 0
    int64_t head_bytes;    // from one KV head to the next
    int64_t row_bytes;     // from one position to the next
    int64_t value_bytes;   // from a key to its value
};

struct Span {  // as packed by kv_pages.py: successive positions of one sequence
    int64_t tokens;
    int64_t start;         // the position of the first
    const int64_t *pages;  // the addresses of the sequence's pages, from position 0 on
    int64_t row;           // the first token's, among those of all spans
};

struct Rotation {  // as packed by elementwise.py: of the tokens of a call
    const float *cos;     // [T, r]
    const float *sin;
    const float *factor;  // of each token's rotated queries, [T], or null
};

struct AttentionBlock {  // as packed by attention_block.py; the first query head of every KV head and the end follow
    PanelWeight qkv[3];  // without y, and so is o
    PanelWeight o;
    int64_t projections;  // 1: q alone, nothing is appended; 2: q and k, whose products are the values, too; 3: all
    int64_t hidden;
    const float *norm;    // or null
    int64_t heads;
    const float *q_norm;  // of each head, or null
    const float *k_norm;
    const float *v_norm;
    const float *sinks;   // of each query head, as in kv.h, or null
    int64_t whole;        // q and k have heads of all nodes, and norms are over all of them at once
    int64_t first_q;      // the first head that is the node's own, of those of q
    int64_t first_k;
    int64_t rotated;
    PageLayout layout;
    int64_t window;
    double eps;
    double scale;
    double cap;  // of scores, as in kv.h
};

struct PanelFFN {  // as packed by ffn.py; matrices without y
    PanelWeight gate;   // without data: the activation is of up
    PanelWeight up;     // without data: numbers given to a call take the place of its products
    PanelWeight down;
    const float *norm;  // or null
    double eps;
    int64_t activation;
};

struct Router {  // as packed by experts.py
    const float *weights;  // [experts, H]
    int64_t experts;
    int64_t chosen;        // by each token
    int64_t normalised;    // weights are parts of the softmax over the chosen experts, not over all
    const float *bias;     // of each expert's score, or null
    const float *norm;     // of what it reads, or null: it reads what the experts read
    const float *scale;    // of each expert's weight, or null
};

struct PanelExperts {  // as packed by experts.py; matrices without y are the first expert's
    PanelWeight gate;
    PanelWeight up;
    PanelWeight down;
    Router router;
    int64_t expert_nbytes;   // from one expert to the next, of each matrix
    const float *gate_bias;  // [experts, rows of gate], or null
    const float *up_bias;
    const float *down_bias;  // [experts, O], or null
    const float *norm;       // or null
    double eps;
    int64_t activation;
};

struct BlockEnd {  // as packed by grid.py: x = scale * (x + factor * norm(sum + bias))
    const float *bias;  // [H], or null
    const float *norm;  // the weight [H] of an RMS norm, or null
    double eps;
    double factor;
    double scale;
    const float *parts[2];  // weights [H] of the norms of two sums, which take the sum's place added up; or null
};

struct PanelBlock {  // as packed by attention_block.py: attention, an FFN, experts or both; the others are null
    const AttentionBlock *attention;
    const PanelFFN *ffn;
    const PanelExperts *experts;
    int64_t number;  // which one of the call's rotations; of an FFN, its first column of the call's inputs
    BlockEnd end;
};

// What calls return that may not compute all of what they were to; they stop there. No memory for what they keep meanwhile;
// or sums of a row-parallel matrix that may be too large for 32 bits, but for those of `most`.
namespace tpiedge {
enum { DONE = 0, NO_MEMORY = 1, TOO_LARGE = 2 };
enum Activation { SILU, GELU_TANH, TANH, GPT_OSS };  // numbered as in elementwise.py
enum Sums { INT32_SUMS, INT64_SUMS, F32_SUMS };  // what a block ends with
}
#define TPIEDGE_STATUS __attribute__((warn_unused_result)) int

// Calls of one handle by several threads wait for each other where they share anything. Nothing throws.
extern "C" {
int tpiedge_abi();
int tpiedge_has_isa(int isa);
int tpiedge_best_isa();
void *tpiedge_open(int threads, int isa);
void tpiedge_close(void *handle);
void tpiedge_project(void *handle, const float *x, int64_t tokens, int64_t cols, const Weight *weights, int64_t count);
TPIEDGE_STATUS tpiedge_contract(void *handle, const float *x, const Weight *weight, int64_t tokens, int64_t cols);
TPIEDGE_STATUS tpiedge_ffn(void *handle, const float *x, int64_t tokens, int64_t hidden, const float *norm, float eps,
                           int rounds, const Weight *weights, int64_t activation, int64_t cols, float *scratch);
TPIEDGE_STATUS tpiedge_panels_project(void *handle, const float *x, int64_t tokens, const PanelWeight *weights,
                                      int64_t count);
TPIEDGE_STATUS tpiedge_panels_contract(void *handle, const float *x, int64_t tokens, const PanelWeight *weight, int wide);
TPIEDGE_STATUS tpiedge_panels_attention(void *handle, const AttentionBlock *block, const float *x, void *y,
                                        const Span *spans, int64_t count, const Rotation *rotation, float *scratch,
                                        int wide);
TPIEDGE_STATUS tpiedge_panels_ffn(void *handle, const PanelFFN *ffn, const float *x, const float *inputs,
                                  int64_t input_stride, void *y, int64_t tokens, float *scratch, int wide);
void tpiedge_route(void *handle, const float *x, int64_t tokens, int64_t width, const Router *router, float *logits,
                   int64_t *ids, float *weights);
TPIEDGE_STATUS tpiedge_panels_experts(void *handle, const PanelExperts *block, const float *x, void *y, int64_t *chosen,
                                      int64_t tokens, float *scratch, int wide);
void tpiedge_add_sums(void *handle, float *x, const void *sums, int64_t tokens, int64_t width, int64_t exponent, int kind,
                      const BlockEnd *end, float *scratch);
TPIEDGE_STATUS tpiedge_panels_stack(void *handle, const PanelBlock *blocks, int64_t count, float *x, const Span *spans,
                                    int64_t span_count, const Rotation *rotations, const float *inputs,
                                    int64_t input_stride, float *scratch, double *seconds);
void tpiedge_rms_norm(void *handle, const float *x, float *y, int64_t token_stride, int64_t head_stride, int64_t tokens,
                      int64_t heads, int64_t width, const float *weight, float eps);
void tpiedge_rope(void *handle, const float *x, float *y, int64_t token_stride, int64_t head_stride, int64_t tokens,
                  int64_t heads, int64_t width, const Rotation *rotation, int64_t rotated);
void tpiedge_activate(void *handle, const float *gate, const float *up, float *y, int64_t count, int64_t activation);
void tpiedge_attention(void *handle, const float *q, float *y, const PageLayout *layout, const Span *spans,
                       int64_t count, const int64_t *head_start, int64_t heads, int64_t window, float scale, float cap,
                       const float *sinks);
void tpiedge_kv_append(void *handle, const float *k, const float *v, const PageLayout *layout, const Span *spans,
                       int64_t count, int64_t k_token_stride, int64_t k_head_stride, int64_t v_token_stride,
                       int64_t v_head_stride);
int64_t tpiedge_quantise(int64_t level, const void *values, int64_t kind, int64_t stride, int64_t outputs,
                         int64_t inputs, int64_t bits, int64_t searches, uint8_t *panels, double *sums);
uint64_t tpiedge_probe_read(const void *data, int64_t nbytes);  // multiples of 256 bytes
int64_t tpiedge_probe_operations(int int8);
int64_t tpiedge_probe_multiply(int int8, int64_t rounds);
uint32_t tpiedge_crc32(const void *data, int64_t size, uint32_t before);
int64_t tpiedge_draw(int64_t level, const float *scores, int64_t count, double temperature, int64_t top_k, double top_p,
                     double min_p, double number);
int64_t tpiedge_likeliest(int64_t level, const float *scores, int64_t count, int64_t wanted, int64_t *ids);
}

#endif
