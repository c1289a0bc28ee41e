// Encodes matrices of f32 or i32 for the wire, with the same bits as tpiedge/collectives/codec.py.
#ifndef TPIEDGE_WIRE_H
#define TPIEDGE_WIRE_H

#include <stddef.h>
#include <stdint.h>

namespace tpiedge {

// The numbering of PRECISIONS in native_library.py.
enum class Precision { F32 = 0, BF16 = 1, INT8 = 2, I32 = 3 };

// Row-major. Encoded matrices need not be aligned. With I32 every float has the bits of an int32_t, and is never used
// as a float.
struct Matrix {
    Precision precision;
    size_t rows;
    size_t columns;

    size_t count() const { return rows * columns; }
    size_t wire_bytes() const;
    // The most bytes of an encoded matrix of this shape between the same nodes: integers may be i64.
    size_t most_bytes() const { return count() * (precision == Precision::I32 ? sizeof(int64_t) : sizeof(float)); }
    // Whether the encoding keeps the bits.
    bool is_exact() const { return precision == Precision::F32 || precision == Precision::I32; }
    void encode(const float *from, void *to) const;
    void decode(const void *from, float *to) const;
    // Adds the decoded matrix to `sum`; integers wrap around.
    void add(const void *from, float *sum) const;
    // Gives `to` the values that a receiver decodes; `to` may be `from`. `wire`: room for the encoding, which an exact
    // precision leaves alone.
    void round(const float *from, float *to, void *wire) const;
    bool is_finite(const float *values) const;
};

bool is_finite(const float *values, size_t count);

}  // namespace tpiedge

#endif
