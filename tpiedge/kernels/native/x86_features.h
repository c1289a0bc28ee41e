// Detects what an x86 CPU has that __builtin_cpu_supports knows only in newer compilers. That the system keeps the
// registers follows from AVX2.
#ifndef TPIEDGE_X86_FEATURES_H
#define TPIEDGE_X86_FEATURES_H

#if defined(__x86_64__)

#include <cpuid.h>

// Whether compiler and assembler know AVX-VNNI.
#if defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11
#define TPIEDGE_AVX_VNNI
#endif

namespace {

inline bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

inline bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

}  // namespace

#endif

#endif
