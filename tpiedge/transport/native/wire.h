// How a matrix of f32 travels, to the bit as tpiedge/collectives/codec.py has it.
#ifndef TPIEDGE_WIRE_H
#define TPIEDGE_WIRE_H

#include <stddef.h>
#include <stdint.h>

namespace tpiedge {

// The numbering of PRECISIONS in native_library.py.
enum class Precision { F32 = 0, BF16 = 1, INT8 = 2 };

// Row-major. What is on the wire need not be aligned.
struct Matrix {
    Precision precision;
    size_t rows;
    size_t columns;

    size_t count() const { return rows * columns; }
    size_t wire_bytes() const;
    void encode(const float *from, void *to) const;
    void decode(const void *from, float *to) const;
    // To `sum`, what `decode` would give.
    void add(const void *from, float *sum) const;
    // What comes out at the other end; `to` may be `from`. `wire`: room for what travels, which an exact precision
    // leaves alone.
    void round(const float *from, float *to, void *wire) const;
};

bool is_finite(const float *values, size_t count);

}  // namespace tpiedge

#endif
