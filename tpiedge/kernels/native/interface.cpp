// The C interface that tpiedge/kernels/library.py calls. Pointers and sizes were checked there.
#include <stdint.h>
#include <string.h>

#include <exception>

#include "context.h"

namespace {

using tpiedge::Context;
using tpiedge::Isa;
using tpiedge::Kernels;
using tpiedge::piece_of;
using tpiedge::Product;
using tpiedge::Rows;
using tpiedge::share_rows;

constexpr int ABI = 16;  // as in shared_library.py

// Pieces for each thread.
constexpr int64_t PROJECT_PIECES = 8;
// A contraction is summed in slices of rows, whatever the number of threads, so that each thread reads whole rows one
// after the other; the slices' sums are added in order. Pieces of columns instead leave half the bandwidth unused.
constexpr int64_t CONTRACT_SLICES = 8;
constexpr int64_t SLICE_GRAIN = 16;  // a multiple of the rows that the kernels sum at once
// Elements of an activation that go together. The vectors of every instruction set divide it.
constexpr int64_t STRETCH = 64;

// Products that share x, computed with one hand-over to the pool.
struct Job {
    int count = 0;
    struct Part {
        Product product;
        tpiedge::ProductKernel kernel;
        int64_t outputs;
        int64_t piece;
        int64_t first_piece;
    } parts[tpiedge::MAX_PRODUCTS];
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

// The numbering of ISAS in shared_library.py, slowest first.
Isa isa_of(int isa) {
    switch (isa) {
        case 0: return {tpiedge::portable_kernels(), tpiedge::portable_panels()};
        case 1: return {tpiedge::avx2_kernels(), tpiedge::avx2_panels()};
        case 2: return {tpiedge::avx2_kernels(), tpiedge::avxvnni_panels()};
        case 3: return {tpiedge::avx512_kernels(), tpiedge::avx2_panels()};
        case 4: return {tpiedge::avx512_kernels(), tpiedge::avx512vnni_panels()};
        case 5: return {tpiedge::neon_kernels(), tpiedge::neon_panels()};
        case 6: return {tpiedge::neon_kernels(), tpiedge::neon_dotprod_panels()};
        case 7: return {tpiedge::neon_kernels(), tpiedge::neon_i8mm_panels()};
        default: return {nullptr, nullptr};
    }
}

constexpr int LAST_ISA = 7;

bool has_isa(int isa) {
    const Isa found = isa_of(isa);
    return found.kernels && found.panels;
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

// The slices' sums take at most CONTRACT_SLICES * tokens * cols floats: callers bring few tokens (NATIVE_TOKENS in
// library.py).
TPIEDGE_STATUS contract(Context &context, const float *x, const Weight &w, int64_t tokens, int64_t cols) {
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    const Kernels &kernels = *context.kernels;
    const int64_t slice = piece_of(w.rows, SLICE_GRAIN, CONTRACT_SLICES);
    const int64_t slices = (w.rows + slice - 1) / slice;
    const int64_t outputs = tokens * cols;
    if (slices == 0) {
        memset(w.y, 0, outputs * sizeof(float));
        return 0;
    }
    float *partial = context.sums.of<float>(slices * outputs);
    if (!partial) return 1;
    const ContractJob job{Product{x, w.w, w.y, w.stride, tokens, w.rows, cols, w.rows},
                          w.is_bf16 ? kernels.contract_bf16 : kernels.contract_f32, slice, w.is_bf16 ? 2 : 4, partial};
    context.pool.run(compute_contract, &job, slices);
    memcpy(w.y, partial, outputs * sizeof(float));
    for (int64_t s = 1; s < slices; s++)
        for (int64_t i = 0; i < outputs; i++) w.y[i] += partial[s * outputs + i];
    return 0;
}

Rows part_of(const Rows &rows, int64_t first, int64_t last) {
    Rows part = rows;
    part.x += first * rows.token_stride;
    part.y += first * rows.heads * rows.width;
    part.tokens = last - first;
    return part;
}

void rms_norm(Context &context, const Rows &rows, const float *weight, float eps) {
    share_rows(context.pool, rows.tokens, rows.heads * rows.width, [&](int64_t first, int64_t last) {
        context.kernels->rms_norm(part_of(rows, first, last), weight, eps);
    });
}

void activate(Context &context, const float *gate, const float *up, float *y, int64_t count, int64_t activation) {
    share_rows(context.pool, (count + STRETCH - 1) / STRETCH, STRETCH, [&](int64_t first, int64_t last) {
        const int64_t at = first * STRETCH, end = last * STRETCH < count ? last * STRETCH : count;
        context.kernels->activate(gate + at, up ? up + at : nullptr, y + at, end - at, activation);
    });
}

// To bf16, and back to f32.
void round_to_bf16(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = static_cast<uint32_t>(tpiedge::bf16(x[i])) << 16;
        memcpy(x + i, &bits, sizeof bits);
    }
}

}  // namespace

TPIEDGE_EXPORT int tpiedge_abi() { return ABI; }

TPIEDGE_EXPORT int tpiedge_has_isa(int isa) { return has_isa(isa); }

TPIEDGE_EXPORT int tpiedge_best_isa() {
    int isa = LAST_ISA;
    while (isa > 0 && !has_isa(isa)) isa--;
    return isa;
}

// Null where the instruction set is missing or the threads cannot be started.
TPIEDGE_EXPORT void *tpiedge_open(int threads, int isa) {
    if (!has_isa(isa)) return nullptr;
    try {
        return new Context(threads, isa_of(isa));
    } catch (const std::exception &) {
        return nullptr;
    }
}

TPIEDGE_EXPORT void tpiedge_close(void *handle) { delete static_cast<Context *>(handle); }

TPIEDGE_EXPORT void tpiedge_project(void *handle, const float *x, int64_t tokens, int64_t cols, const Weight *weights,
                                    int64_t count) {
    project(*static_cast<Context *>(handle), x, tokens, cols, weights, count);
}

TPIEDGE_EXPORT int tpiedge_contract(void *handle, const float *x, const Weight *weight, int64_t tokens, int64_t cols) {
    return contract(*static_cast<Context *>(handle), x, *weight, tokens, cols);
}

// Norm (may be null), gate (may have no w) and up, activation, down (`weights` in this order), without a return to Python
// between them: its code would have been driven out of the caches by the weights. Where up has no w, its y has the numbers
// that take the place of its products, in rows `stride` apart. `scratch` holds tokens * (hidden + gate's + up's rows).
TPIEDGE_EXPORT int tpiedge_ffn(void *handle, const float *x, int64_t tokens, int64_t hidden, const float *norm,
                               float eps, int rounds, const Weight *weights, int64_t activation, int64_t cols,
                               float *scratch) {
    Context &context = *static_cast<Context *>(handle);
    const bool gated = weights[0].w, given = gated && !weights[1].w;
    const Weight *first = weights + !gated;
    const int64_t inner = tokens * first->rows;
    if (norm)
        rms_norm(context, Rows{x, scratch, hidden, 0, tokens, 1, hidden}, norm, eps);
    else
        memcpy(scratch, x, tokens * hidden * sizeof(float));
    if (rounds) round_to_bf16(scratch, tokens * hidden);
    project(context, scratch, tokens, hidden, first, gated && !given ? 2 : 1);
    if (given)
        for (int64_t t = 0; t < tokens; t++) {
            float *row = first->y + t * first->rows;
            activate(context, row, weights[1].y + t * weights[1].stride, row, first->rows, activation);
        }
    else
        activate(context, first->y, gated ? weights[1].y : nullptr, first->y, inner, activation);
    if (rounds) round_to_bf16(first->y, inner);
    return contract(context, first->y, weights[2], tokens, cols);
}

TPIEDGE_EXPORT void tpiedge_rms_norm(void *handle, const float *x, float *y, int64_t token_stride, int64_t head_stride,
                                     int64_t tokens, int64_t heads, int64_t width, const float *weight, float eps) {
    const Rows rows{x, y, token_stride, head_stride, tokens, heads, width};
    rms_norm(*static_cast<Context *>(handle), rows, weight, eps);
}

TPIEDGE_EXPORT void tpiedge_rope(void *handle, const float *x, float *y, int64_t token_stride, int64_t head_stride,
                                 int64_t tokens, int64_t heads, int64_t width, const Rotation *rotation,
                                 int64_t rotated) {
    const Rows rows{x, y, token_stride, head_stride, tokens, heads, width};
    Context &context = *static_cast<Context *>(handle);
    share_rows(context.pool, tokens, heads * width, [&](int64_t first, int64_t last) {
        const Rotation some{rotation->cos + first * rotated, rotation->sin + first * rotated,
                            rotation->factor ? rotation->factor + first : nullptr};
        context.kernels->rope(part_of(rows, first, last), some, rotated);
    });
}

// y = activation(gate) * up, or activation(gate) where `up` is null.
TPIEDGE_EXPORT void tpiedge_activate(void *handle, const float *gate, const float *up, float *y, int64_t count,
                                     int64_t activation) {
    activate(*static_cast<Context *>(handle), gate, up, y, count, activation);
}
