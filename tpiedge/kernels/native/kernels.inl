// The kernels, written once for a vector type V that each instruction set's source defines before it includes this:
//   lanes, Reg; zero, load, load_some (n < lanes; zeros beyond), broadcast, fma(a, b, c) = a * b + c, add, sub, mul, div,
//   max(a, b) = a > b ? a : b, store, store_some, sum (in a fixed order), sum4 (of four, all in the same fixed order),
//   power2 (below), prefetch; TOKENS at once and VECTORS of columns as registers allow.
// Everything lives in an unnamed namespace: two sources must never share code compiled for different CPUs.

#include "product.inl"
#include "elementwise.inl"
#include "attention.inl"

namespace {

template <class V>
constexpr tpiedge::Kernels KERNELS = {project<V, float>,   project<V, uint16_t>,  contract<V, float>,
                                      contract<V, uint16_t>, rms_norm<V>,         rope<V>,
                                      swiglu<V>,           attention<V, float>,   attention<V, uint16_t>};

}  // namespace
