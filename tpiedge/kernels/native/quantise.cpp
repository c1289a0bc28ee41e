// The C interface of quantising, and quantising on any machine: four outputs at once.
#include "quantise.h"

#include "interface.h"
#include "quantise.inl"

namespace {

struct Portable {
    static constexpr int LANES = 4;
    typedef float Floats __attribute__((vector_size(16)));
    typedef int32_t Ints __attribute__((vector_size(16)));
    typedef uint16_t Halves __attribute__((vector_size(8)));

    static TPIEDGE_INLINE Floats max(const Floats &a, const Floats &b) { return a > b ? a : b; }
    static TPIEDGE_INLINE Floats min(const Floats &a, const Floats &b) { return a < b ? a : b; }

    static TPIEDGE_INLINE void columns(const uint16_t *from, int64_t stride, Ints *to) {
        Quantiser<Portable>::gather<WeightKind::BF16>(from, stride, LANES, GROUP, to);
    }
};

// The best that is there, and `level` allows.
tpiedge::QuantiseUnit chosen(int64_t level) {
    tpiedge::QuantiseUnit quantise = level >= 2 ? tpiedge::avx512_quantise() : nullptr;
    if (quantise == nullptr && level >= 1) quantise = tpiedge::avx2_quantise();
    return quantise == nullptr ? &Quantiser<Portable>::quantise : quantise;
}

}  // namespace

// Quantises outputs x inputs numbers (kind 0 f32, 1 f16, 2 bf16; `stride` numbers from one output to the next) into
// panels of `bits` bits, with at most the instruction set `level`: 0 any, 1 AVX2, 2 AVX512. `sums` becomes the squares
// of the weights and of their errors. Returns 0, or 1 where a weight or a scale is not a finite number: then the
// panels are not complete.
TPIEDGE_EXPORT int64_t tpiedge_quantise(int64_t level, const void *values, int64_t kind, int64_t stride,
                                        int64_t outputs, int64_t inputs, int64_t bits, int64_t searches,
                                        uint8_t *panels, double *sums) {
    WeightUnit unit{values, static_cast<WeightKind>(kind), stride, outputs, inputs, bits, searches != 0, panels, 0, 0};
    const bool done = chosen(level)(unit);
    sums[0] = unit.signal;
    sums[1] = unit.noise;
    return done ? 0 : 1;
}
