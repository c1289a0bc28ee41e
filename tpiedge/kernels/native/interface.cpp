// The C interface that tpiedge/kernels/library.py calls. Pointers and sizes were checked there.
#include <stdint.h>
#include <string.h>

#include <exception>
#include <vector>

#include "kernels.h"
#include "pool.h"

#define TPIEDGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tpiedge::Attention;
using tpiedge::Kernels;
using tpiedge::Product;
using tpiedge::Rows;

constexpr int ABI = 4;  // as in library.py

// Pieces for each thread.
constexpr int64_t PROJECT_PIECES = 8;
// A contraction is summed in slices of rows, whatever the number of threads, so that each thread reads whole rows one
// after the other; the slices' sums are added in order. Pieces of columns instead leave half the bandwidth unused.
constexpr int64_t CONTRACT_SLICES = 8;
constexpr int64_t SLICE_GRAIN = 16;  // a multiple of the rows that the kernels sum at once
// Multiplications of an attention (one of its two products) from which waking other threads pays.
constexpr int64_t WORTH_SHARING = 1 << 18;

struct Context {
    Context(int threads, const Kernels *with) : pool(threads), kernels(with) {}
    tpiedge::Pool pool;
    const Kernels *kernels;
    std::vector<float> partial;  // of a contraction: [slices, T, C]
};

// Products that share x, computed with one hand-over to the pool.
constexpr int MAX_PRODUCTS = 4;  // as in library.py

struct Job {
    int count = 0;
    struct Part {
        Product product;
        tpiedge::ProductKernel kernel;
        int64_t outputs;
        int64_t piece;
        int64_t first_piece;
    } parts[MAX_PRODUCTS];
    int64_t pieces = 0;

    void add(const Product &product, tpiedge::ProductKernel kernel, int64_t outputs, int64_t piece) {
        parts[count++] = Part{product, kernel, outputs, piece, pieces};
        pieces += (outputs + piece - 1) / piece;
    }
};

struct ContractJob {
    Product product;
    tpiedge::ProductKernel kernel;
    int64_t slice;  // rows
    int64_t itemsize;
    float *partial;
};

struct AttentionJob {
    Attention attention;
    void (*kernel)(const Attention &, int64_t token, int64_t kv_head);
    int64_t tokens;
};

// The numbering of ISAS in library.py, slowest first.
const Kernels *kernels_of(int isa) {
    switch (isa) {
        case 0: return tpiedge::portable_kernels();
        case 1: return tpiedge::avx2_kernels();
        case 2: return tpiedge::avx512_kernels();
        default: return nullptr;
    }
}

void compute(const void *context, int64_t index) {
    const Job &job = *static_cast<const Job *>(context);
    int at = job.count - 1;
    while (index < job.parts[at].first_piece) at--;
    const Job::Part &part = job.parts[at];
    const int64_t first = (index - part.first_piece) * part.piece;
    const int64_t last = first + part.piece < part.outputs ? first + part.piece : part.outputs;
    part.kernel(part.product, first, last);
}

void compute_contract(const void *context, int64_t index) {
    const ContractJob &job = *static_cast<const ContractJob *>(context);
    const int64_t row = index * job.slice;
    Product part = job.product;
    part.x += row;
    part.w = static_cast<const char *>(part.w) + row * part.w_stride * job.itemsize;
    part.y = job.partial + index * part.tokens * part.cols;
    part.rows = part.rows - row < job.slice ? part.rows - row : job.slice;
    job.kernel(part, 0, part.cols);
}

void compute_attention(const void *context, int64_t index) {
    const AttentionJob &job = *static_cast<const AttentionJob *>(context);
    job.kernel(job.attention, index % job.tokens, index / job.tokens);
}

// Pieces are small enough that a thread that lost its core for a while does not hold up the others, and a multiple of
// `grain` outputs.
int64_t piece_of(int64_t outputs, int64_t grain, int64_t wanted) {
    const int64_t piece = ((outputs + wanted - 1) / wanted + grain - 1) / grain * grain;
    return piece > 0 ? piece : grain;
}

struct Weight {  // as packed by library.py
    const void *w;
    float *y;
    int64_t is_bf16;
    int64_t stride;
    int64_t rows;
};

void project(Context &context, const float *x, int64_t tokens, int64_t cols, const Weight *weights, int64_t count) {
    const Kernels &kernels = *context.kernels;
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++) rows += weights[i].rows;
    const int64_t piece = piece_of(rows, 16, context.pool.threads() * PROJECT_PIECES);
    Job job;
    for (int64_t i = 0; i < count; i++) {
        const Weight &w = weights[i];
        job.add(Product{x, w.w, w.y, w.stride, tokens, w.rows, cols, cols},
                w.is_bf16 ? kernels.project_bf16 : kernels.project_f32, w.rows, piece);
    }
    context.pool.run(compute, &job, job.pieces);
}

void contract(Context &context, const float *x, const Weight &w, int64_t tokens, int64_t cols) {
    const Kernels &kernels = *context.kernels;
    const int64_t slice = piece_of(w.rows, SLICE_GRAIN, CONTRACT_SLICES);
    const int64_t slices = (w.rows + slice - 1) / slice;
    const int64_t outputs = tokens * cols;
    if (slices == 0) {
        memset(w.y, 0, outputs * sizeof(float));
        return;
    }
    if (static_cast<int64_t>(context.partial.size()) < slices * outputs) context.partial.resize(slices * outputs);
    const ContractJob job{Product{x, w.w, w.y, w.stride, tokens, w.rows, cols, w.rows},
                          w.is_bf16 ? kernels.contract_bf16 : kernels.contract_f32, slice, w.is_bf16 ? 2 : 4,
                          context.partial.data()};
    context.pool.run(compute_contract, &job, slices);
    memcpy(w.y, job.partial, outputs * sizeof(float));
    for (int64_t s = 1; s < slices; s++)
        for (int64_t i = 0; i < outputs; i++) w.y[i] += job.partial[s * outputs + i];
}

// To the nearest bf16, halves to even, as torch does.
void round_to_bf16(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        const bool number = (bits & 0x7fffffff) <= 0x7f800000;
        bits = number ? (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000 : 0x7fc00000;
        memcpy(x + i, &bits, sizeof bits);
    }
}

}  // namespace

TPIEDGE_EXPORT int tpiedge_abi() { return ABI; }

TPIEDGE_EXPORT int tpiedge_has_isa(int isa) { return kernels_of(isa) != nullptr; }

TPIEDGE_EXPORT int tpiedge_best_isa() {
    int isa = 2;
    while (isa > 0 && !kernels_of(isa)) isa--;
    return isa;
}

// Null where the instruction set is missing or the threads cannot be started.
TPIEDGE_EXPORT void *tpiedge_open(int threads, int isa) {
    const Kernels *kernels = kernels_of(isa);
    if (!kernels) return nullptr;
    try {
        return new Context(threads, kernels);
    } catch (const std::exception &) {
        return nullptr;
    }
}

TPIEDGE_EXPORT void tpiedge_close(void *handle) { delete static_cast<Context *>(handle); }

TPIEDGE_EXPORT void tpiedge_project(void *handle, const float *x, int64_t tokens, int64_t cols, const Weight *weights,
                                    int64_t count) {
    project(*static_cast<Context *>(handle), x, tokens, cols, weights, count);
}

TPIEDGE_EXPORT void tpiedge_contract(void *handle, const float *x, const Weight *weight, int64_t tokens, int64_t cols) {
    contract(*static_cast<Context *>(handle), x, *weight, tokens, cols);
}

// Norm, gate and up, SwiGLU, down (`weights` in this order), without a return to Python between them: its code would
// have been driven out of the caches by the weights. `scratch` holds tokens * (hidden + gate's + up's rows).
TPIEDGE_EXPORT void tpiedge_ffn(void *handle, const float *x, int64_t tokens, int64_t hidden, const float *norm,
                                float eps, int rounds, const Weight *weights, int64_t cols, float *scratch) {
    Context &context = *static_cast<Context *>(handle);
    const int64_t inner = tokens * weights[0].rows;
    context.kernels->rms_norm(Rows{x, scratch, hidden, 0, tokens, 1, hidden}, norm, eps);
    if (rounds) round_to_bf16(scratch, tokens * hidden);
    project(context, scratch, tokens, hidden, weights, 2);
    float *gate = weights[0].y;
    context.kernels->swiglu(gate, weights[1].y, gate, inner);
    if (rounds) round_to_bf16(gate, inner);
    contract(context, gate, weights[2], tokens, cols);
}

TPIEDGE_EXPORT void tpiedge_rms_norm(void *handle, const float *x, float *y, int64_t token_stride, int64_t head_stride,
                                     int64_t tokens, int64_t heads, int64_t width, const float *weight, float eps) {
    const Rows rows{x, y, token_stride, head_stride, tokens, heads, width};
    static_cast<Context *>(handle)->kernels->rms_norm(rows, weight, eps);
}

TPIEDGE_EXPORT void tpiedge_rope(void *handle, const float *x, float *y, int64_t token_stride, int64_t head_stride,
                                 int64_t tokens, int64_t heads, int64_t width, const float *cos, const float *sin,
                                 int64_t rotated) {
    const Rows rows{x, y, token_stride, head_stride, tokens, heads, width};
    static_cast<Context *>(handle)->kernels->rope(rows, cos, sin, rotated);
}

TPIEDGE_EXPORT void tpiedge_swiglu(void *handle, const float *gate, const float *up, float *y, int64_t count) {
    static_cast<Context *>(handle)->kernels->swiglu(gate, up, y, count);
}

TPIEDGE_EXPORT void tpiedge_attention(void *handle, const float *q, const void *k, const void *v, float *y, int is_bf16,
                                      const int64_t *head_start, int64_t k_head_stride, int64_t k_stride,
                                      int64_t v_head_stride, int64_t v_stride, int64_t tokens, int64_t heads,
                                      int64_t kv_heads, int64_t width, int64_t offset, int64_t window, float scale) {
    Context &context = *static_cast<Context *>(handle);
    const Attention attention{q,        k,     v,     y,      head_start, k_head_stride, k_stride, v_head_stride,
                              v_stride, heads, width, offset, window,     scale};
    const auto kernel = is_bf16 ? context.kernels->attention_bf16 : context.kernels->attention_f32;
    const AttentionJob job{attention, kernel, tokens};
    const int64_t seen = offset + tokens < window ? offset + tokens : window;
    const int64_t pieces = tokens * kv_heads;
    if (seen * tokens * heads * width >= WORTH_SHARING)
        context.pool.run(compute_attention, &job, pieces);
    else
        for (int64_t piece = 0; piece < pieces; piece++) compute_attention(&job, piece);
}
