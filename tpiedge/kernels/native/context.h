// What tpiedge_open makes: threads, the kernels of one instruction set, and memory that the calls use again.
#ifndef TPIEDGE_CONTEXT_H
#define TPIEDGE_CONTEXT_H

#include <stdlib.h>
#include <string.h>

#include <mutex>

#include "fetching.h"
#include "interface.h"
#include "kernels.h"
#include "panels.h"
#include "pool.h"

namespace tpiedge {

// The kernels of one instruction set; both null where the build or the CPU lacks it.
struct Isa {
    const Kernels *kernels;
    const PanelKernels *panels;
};

// Memory that grows to the largest size that was asked for.
class Room {
public:
    Room() = default;
    ~Room() { free(memory_); }
    Room(const Room &) = delete;
    Room &operator=(const Room &) = delete;

    int64_t nbytes() const { return nbytes_; }
    // `wanted` elements at least, from a multiple of a cache line's bytes on; null where the system has no memory. What
    // the room held is not kept.
    template <class T>
    T *of(int64_t wanted) {
        const int64_t nbytes = wanted * static_cast<int64_t>(sizeof(T));
        if (!memory_ || nbytes > nbytes_) {
            free(memory_);
            memory_ = nullptr;
            nbytes_ = nbytes > LINE_BYTES ? nbytes : LINE_BYTES;
            if (posix_memalign(&memory_, LINE_BYTES, static_cast<size_t>(nbytes_))) memory_ = nullptr;
            if (!memory_) nbytes_ = 0;
        }
        return static_cast<T *>(memory_);
    }

private:
    void *memory_ = nullptr;
    int64_t nbytes_ = 0;
};

// The constructor may throw; calls do not, because no exception may leave a C interface.
struct Context {
    Context(int threads, const Isa &isa)
        : pool(threads), kernels(isa.kernels), panels(isa.panels), fetches(fetches_of(*isa.panels)) {}

    Pool pool;
    const Kernels *kernels;
    const PanelKernels *panels;
    const Fetches &fetches;
    std::mutex rooms;  // of every call that uses what follows
    Room sums;         // of a contraction: [slices, T, C]; of quantised matrices [panels, T, 16], and squares
    Room wide_sums;    // in 64 bits: [panels, T, 16]
    Room activations;  // quantised, whole tiles
    Room experts;      // of a block of experts, all that it keeps meanwhile
};

// Pieces are small enough that a thread that lost its core for a while does not hold up the others, and a multiple of
// `grain` outputs.
inline int64_t piece_of(int64_t outputs, int64_t grain, int64_t wanted) {
    const int64_t piece = ((outputs + wanted - 1) / wanted + grain - 1) / grain * grain;
    return piece > 0 ? piece : grain;
}

// The bits of the nearest bf16, halves to even, as torch rounds.
inline uint16_t bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline int64_t tokens_of(const Span *spans, int64_t count) {
    int64_t tokens = 0;
    for (const Span *span = spans; span < spans + count; span++) tokens += span->tokens;
    return tokens;
}

// Elements, read and written, from which waking other threads pays, and pieces for each thread then.
constexpr int64_t WORTH_SHARING = 1 << 16;
constexpr int64_t ROW_PIECES = 4;

// Calls work(first, last) until all of `rows` rows of `width` elements each are done, on all threads where that pays.
template <class Work>
void share_rows(Pool &pool, int64_t rows, int64_t width, const Work &work) {
    if (rows * width < WORTH_SHARING) {
        work(int64_t{0}, rows);
        return;
    }
    struct Job {
        const Work &work;
        int64_t rows;
        int64_t piece;
    };
    const Job job{work, rows, piece_of(rows, 1, pool.threads() * ROW_PIECES)};
    const auto run = [](const void *context, int64_t index) {
        const Job &job = *static_cast<const Job *>(context);
        const int64_t first = index * job.piece;
        job.work(first, job.rows - first < job.piece ? job.rows : first + job.piece);
    };
    pool.run(run, &job, (rows + job.piece - 1) / job.piece);
}

}  // namespace tpiedge

#endif
