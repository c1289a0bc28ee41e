// The kernels for any CPU: portable.inl with kernels.inl.
#include "portable.inl"

#include "kernels.inl"

const tpiedge::Kernels *tpiedge::portable_kernels() { return &KERNELS<Portable>; }
