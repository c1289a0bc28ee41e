// Rows of the KV cache as tpiedge/kernels/kv_format.py says, slowly.
#ifndef TPIEDGE_TESTS_KV_H
#define TPIEDGE_TESTS_KV_H

#include <vector>

#include "check.h"

enum Format { F32, BF16, Q8, Q4, FORMATS };

// The bytes of a row of `width` numbers.
std::vector<uint8_t> encode(int format, const float *x, int64_t width);
// What they stand for.
std::vector<float> decode(int format, const uint8_t *row, int64_t width);

#endif
