// The masses of tokens with AVX2: four at once.
#include "mass.h"

#if defined(__x86_64__)

#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#include "mass.inl"

namespace {

struct Four {
    static constexpr int LANES = 4;
    typedef float Floats __attribute__((vector_size(16)));
    typedef double Doubles __attribute__((vector_size(32)));
    typedef int64_t Longs __attribute__((vector_size(32)));
};

}  // namespace

tpiedge::MassKernel tpiedge::avx2_masses() { return __builtin_cpu_supports("avx2") ? &MassOf<Four>::all : nullptr; }

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

tpiedge::MassKernel tpiedge::avx2_masses() { return nullptr; }

#endif
