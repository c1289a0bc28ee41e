// The portable kernels' a * b + c, rounded once, where a CPU has no instruction for it: for each line of three numbers, the bits
// of f32 in hexadecimal, prints the result's.
#include "check.h"

// Emulated in any case.
#undef __FP_FAST_FMAF
#include "../../tpiedge/kernels/native/portable.inl"

namespace {

float float_from(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace

void print_fused() {
    unsigned a, b, c;
    while (scanf("%x %x %x", &a, &b, &c) == 3) {
        const Portable::Reg same = Portable::broadcast(float_from(a)), other = Portable::broadcast(float_from(b));
        const Portable::Reg result = Portable::fused(same, other, Portable::broadcast(float_from(c)));
        unsigned bits[Portable::lanes];
        memcpy(bits, &result, sizeof bits);
        for (int i = 1; i < Portable::lanes; i++)
            if (bits[i] != bits[0]) exit(1);
        printf("%08x\n", bits[0]);
    }
}
