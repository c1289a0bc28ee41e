// Detects what a 64-bit Arm CPU has beyond NEON.
#ifndef TPIEDGE_NEON_FEATURES_H
#define TPIEDGE_NEON_FEATURES_H

#if defined(__aarch64__)

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>
#endif

namespace {

#if defined(__linux__)

// Bits of the kernel's interface, which older headers do not name.
inline bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }
inline bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }

#elif defined(__APPLE__)

inline bool has_feature(const char *name) {
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, nullptr, 0) == 0 && has;
}
inline bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
inline bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }

#else

inline bool has_dotprod() { return false; }
inline bool has_i8mm() { return false; }

#endif

}  // namespace

#endif

#endif
