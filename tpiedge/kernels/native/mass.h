// The weight of each token when one is drawn: a whole number, so that sums have the same bits in any order.
#ifndef TPIEDGE_MASS_H
#define TPIEDGE_MASS_H

#include <stdint.h>

namespace tpiedge {

// The likeliest token's mass is 2^bits: below 2^51, and the masses of `count` tokens together below 2^62. As mass_bits in
// draw.py.
inline int mass_bits(int64_t count) {
    int length = 0;
    for (; count; count >>= 1) length++;
    return length < 12 ? 50 : 62 - length;
}

// masses[i] = e^((scores[i] - best) / temperature) in steps of 2^-bits, rounded; 2^bits where the score is `best`, the
// largest of them. No score is NaN, and the temperature is above 0.
using MassKernel = void (*)(const float *scores, int64_t count, float best, double temperature, int bits,
                            int64_t *masses);

// Null where this machine or this build lacks the instructions.
MassKernel avx2_masses();

}  // namespace tpiedge

#endif
