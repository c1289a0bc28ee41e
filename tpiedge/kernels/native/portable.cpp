#include "portable.inl"

#include "kernels.inl"

const tpiedge::Kernels *tpiedge::portable_kernels() { return &KERNELS<Portable>; }
