// How a matrix of f32 or i32 travels, to the bit as tpiedge/collectives/codec.py has it.
#ifndef TPIEDGE_WIRE_H
#define TPIEDGE_WIRE_H

#include <stddef.h>
#include <stdint.h>

namespace tpiedge {

// The numbering of PRECISIONS in native_library.py.
enum class Precision { F32 = 0, BF16 = 1, INT8 = 2, I32 = 3 };

// Row-major. What is on the wire need not be aligned. With I32 every float is the bits of an int32_t, and no operation
// looks at it as anything else.
struct Matrix {
    Precision precision;
    size_t rows;
    size_t columns;

    size_t count() const { return rows * columns; }
    size_t wire_bytes() const;
    // The most that a matrix of this shape takes on its way between the same nodes: integers may be i64.
    size_t most_bytes() const { return count() * (precision == Precision::I32 ? sizeof(int64_t) : sizeof(float)); }
    // Whether `wire` has the very bits of what it encodes.
    bool is_exact() const { return precision == Precision::F32 || precision == Precision::I32; }
    void encode(const float *from, void *to) const;
    void decode(const void *from, float *to) const;
    // To `sum`, what `decode` would give; integers wrap around.
    void add(const void *from, float *sum) const;
    // What comes out at the other end; `to` may be `from`. `wire`: room for what travels, which an exact precision
    // leaves alone.
    void round(const float *from, float *to, void *wire) const;
    bool is_finite(const float *values) const;
};

bool is_finite(const float *values, size_t count);

}  // namespace tpiedge

#endif
