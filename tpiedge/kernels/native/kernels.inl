// The kernels, written once for a vector type V. Each instruction set's source defines V before it includes this:
//   lanes, Reg; zero, load, load_some (n < lanes; zeros beyond), broadcast, fma(a, b, c) = a * b + c, add, sub, mul, div,
//   max(a, b) = a > b ? a : b, store, store_some, sum and what else sixteen.inl needs, power2 (below), prefetch; of
//   quantised rows: half (an f16 in every lane), codes (int8 to f32), nibbles<0 or 4> (the lower or upper four bits of
//   bytes to f32); TOKENS at once, VECTORS of columns and, of attention, KEYS (1, 2 or 4) as registers allow.
// Products with f32 and bf16 matrices sum as each instruction set does it best; all others as sixteen.inl has it.
// Everything lives in an unnamed namespace: two sources must never share code compiled for different CPUs.

#include "product.inl"
#include "sixteen.inl"
#include "elementwise.inl"
#include "router.inl"
#include "kv_rows.inl"
#include "attention.inl"

namespace {

template <class V>
constexpr tpiedge::KVKernels KV_KERNELS = {
    {attention<V, float>, attention<V, uint16_t>, attention<V, Q8>, attention<V, Q4>}, append<V, Q8>, append<V, Q4>};

template <class V>
constexpr tpiedge::Kernels KERNELS = {project<V, float>,     project<V, uint16_t>, contract<V, float>,
                                      contract<V, uint16_t>, rms_norm<Wide<V>>,    rope<Wide<V>>,
                                      activate<Wide<V>>,     logits<Wide<V>>,       KV_KERNELS<Wide<V>>};

}  // namespace
