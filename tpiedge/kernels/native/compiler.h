// Attributes for compilers, such as forced inlining.
#ifndef TPIEDGE_COMPILER_H
#define TPIEDGE_COMPILER_H

#define TPIEDGE_INLINE __attribute__((always_inline)) inline

#define TPIEDGE_APART __attribute__((noinline))

// Before a loop over the blocks of a group: unrolled, it would need more registers than there are. Before one that
// copies sums: GCC makes calls of other loops, and then keeps the sums in memory.
#if defined(__clang__)
#define TPIEDGE_ROLLED _Pragma("clang loop unroll(disable)")
#define TPIEDGE_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define TPIEDGE_ROLLED _Pragma("GCC unroll 1")
#define TPIEDGE_UNROLLED _Pragma("GCC unroll 8")
#endif

#endif
