// The C interface that tpiedge/kernels/library.py calls. Pointers and sizes were checked there.
#include <stdint.h>

#include <exception>

#include "kernels.h"
#include "pool.h"

#define TPIEDGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tpiedge::Kernels;
using tpiedge::Product;

constexpr int ABI = 1;  // as in library.py

struct Context {
    Context(int threads, const Kernels *with) : pool(threads), kernels(with) {}
    tpiedge::Pool pool;
    const Kernels *kernels;
};

struct Job {
    Product product;
    tpiedge::Kernel kernel;
    int64_t outputs;
    int64_t piece;
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
    const int64_t first = index * job.piece;
    const int64_t last = first + job.piece < job.outputs ? first + job.piece : job.outputs;
    job.kernel(job.product, first, last);
}

// Pieces are small enough that a thread that lost its core for a while does not hold up the others, and a multiple of
// `grain` outputs.
void run(Context &context, const Product &product, tpiedge::Kernel kernel, int64_t outputs, int64_t grain,
         int64_t pieces_per_thread) {
    const int64_t wanted = context.pool.threads() * pieces_per_thread;
    const int64_t piece = ((outputs + wanted - 1) / wanted + grain - 1) / grain * grain;
    const Job job{product, kernel, outputs, piece};
    if (outputs > 0) context.pool.run(compute, &job, (outputs + piece - 1) / piece);
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

TPIEDGE_EXPORT void tpiedge_project(void *handle, const float *x, const void *w, int w_is_bf16, int64_t w_stride,
                                    float *y, int64_t tokens, int64_t rows, int64_t cols) {
    Context &context = *static_cast<Context *>(handle);
    const Product product{x, w, y, w_stride, tokens, rows, cols};
    run(context, product, w_is_bf16 ? context.kernels->project_bf16 : context.kernels->project_f32, rows, 16, 8);
}

TPIEDGE_EXPORT void tpiedge_contract(void *handle, const float *x, const void *w, int w_is_bf16, int64_t w_stride,
                                     float *y, int64_t tokens, int64_t rows, int64_t cols) {
    Context &context = *static_cast<Context *>(handle);
    const Product product{x, w, y, w_stride, tokens, rows, cols};
    run(context, product, w_is_bf16 ? context.kernels->contract_bf16 : context.kernels->contract_f32, cols, 64, 2);
}
