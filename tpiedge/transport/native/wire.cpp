// Implements wire.h.
#include "wire.h"

#include <string.h>

// The compiler vectorises the loops below as it likes; the bits are the same everywhere, as no operation is fused.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define TPIEDGE_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define TPIEDGE_WIDE
#endif
#define TPIEDGE_INLINE inline __attribute__((always_inline))

namespace tpiedge {

namespace {

// A received tensor starts wherever libzmq put the message.
typedef float Loose __attribute__((aligned(1), may_alias));
typedef uint16_t LooseHalf __attribute__((aligned(1), may_alias));
typedef uint32_t Bits __attribute__((aligned(1), may_alias));

constexpr uint32_t EXPONENT = 0x7f800000;  // all ones: infinity or not a number
constexpr int32_t INFINITE = 0x7f800000;
constexpr uint32_t MAGNITUDE = 0x7fffffff;
constexpr uint32_t NOT_A_NUMBER = 0x7fc00000;
constexpr size_t GROUP = 64;  // INT8_GROUP of wire/fields.py
constexpr float LARGEST = 127.0f;
constexpr int32_t LARGEST_BITS = 0x42fe0000;
// Adding this rounds to an integer (ties to even), which is then in the lowest bits of the sum.
constexpr float LIFT = 12582912.0f;

TPIEDGE_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

TPIEDGE_INLINE float value_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

size_t groups_of(size_t columns) { return (columns + GROUP - 1) / GROUP; }

TPIEDGE_WIDE void add_f32(const Loose *from, float *sum, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += from[i];
}

TPIEDGE_WIDE void add_i32(const Bits *from, Bits *sum, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += from[i];
}

TPIEDGE_WIDE void encode_bf16(const Bits *from, LooseHalf *to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = from[i];
        const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        // Rounding may turn a NaN into an infinity or a zero.
        const uint32_t kept = (bits >> 16) | 0x40;
        const bool is_number = static_cast<int32_t>(bits & MAGNITUDE) <= INFINITE;
        to[i] = static_cast<uint16_t>(is_number ? rounded : kept);
    }
}

TPIEDGE_WIDE void decode_bf16(const LooseHalf *from, float *to, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = value_of(static_cast<uint32_t>(from[i]) << 16);
}

TPIEDGE_WIDE void add_bf16(const LooseHalf *from, float *sum, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += value_of(static_cast<uint32_t>(from[i]) << 16);
}

TPIEDGE_INLINE float scale_of(const float *from, size_t count) {
    int32_t largest = 0;  // as bits, which are in the order of the magnitudes
    for (size_t i = 0; i < count; i++) {
        const int32_t magnitude = static_cast<int32_t>(bits_of(from[i]) & MAGNITUDE);
        largest = magnitude > largest ? magnitude : largest;
    }
    const uint32_t bits = static_cast<uint32_t>(largest);
    return value_of(bits > EXPONENT ? NOT_A_NUMBER : bits) / LARGEST;
}

TPIEDGE_INLINE float encode_group(const float *from, uint8_t *__restrict to, size_t count) {
    const float scale = scale_of(from, count);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (size_t i = 0; i < count; i++) {
        const uint32_t scaled = bits_of(from[i] * inverse);
        int32_t magnitude = static_cast<int32_t>(scaled & MAGNITUDE);
        // Integers are compared: comparing floats may trap, which would keep the loop from being vectorised.
        magnitude = magnitude > INFINITE ? 0 : magnitude;
        magnitude = magnitude > LARGEST_BITS ? LARGEST_BITS : magnitude;
        const float clamped = value_of((scaled & ~MAGNITUDE) | static_cast<uint32_t>(magnitude));
        to[i] = static_cast<uint8_t>(bits_of(clamped + LIFT));
    }
    return scale;
}

TPIEDGE_WIDE void encode_row(const float *from, uint8_t *to, size_t columns) {
    uint8_t *scales = to + columns;
    for (size_t at = 0; at < columns; at += GROUP, scales += sizeof(float)) {
        // A constant count makes faster code.
        const float scale = columns - at >= GROUP ? encode_group(from + at, to + at, GROUP)
                                                  : encode_group(from + at, to + at, columns - at);
        memcpy(scales, &scale, sizeof scale);
    }
}

TPIEDGE_WIDE void decode_row(const uint8_t *from, float *to, size_t columns) {
    const int8_t *codes = reinterpret_cast<const int8_t *>(from);
    const Loose *scales = reinterpret_cast<const Loose *>(from + columns);
    for (size_t at = 0; at < columns; at += GROUP) {
        const float scale = scales[at / GROUP];
        const size_t end = columns - at >= GROUP ? at + GROUP : columns;
        for (size_t i = at; i < end; i++) to[i] = static_cast<float>(codes[i]) * scale;
    }
}

TPIEDGE_WIDE void add_row(const uint8_t *from, float *sum, size_t columns) {
    const int8_t *codes = reinterpret_cast<const int8_t *>(from);
    const Loose *scales = reinterpret_cast<const Loose *>(from + columns);
    for (size_t at = 0; at < columns; at += GROUP) {
        const float scale = scales[at / GROUP];
        const size_t end = columns - at >= GROUP ? at + GROUP : columns;
        for (size_t i = at; i < end; i++) sum[i] += static_cast<float>(codes[i]) * scale;
    }
}

}  // namespace

TPIEDGE_WIDE bool is_finite(const float *values, size_t count) {
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) found |= (bits_of(values[i]) & EXPONENT) == EXPONENT;
    return !found;
}

size_t Matrix::wire_bytes() const {
    switch (precision) {
        case Precision::BF16:
            return count() * sizeof(uint16_t);
        case Precision::INT8:
            return rows * (columns + groups_of(columns) * sizeof(float));
        default:
            return count() * sizeof(float);
    }
}

void Matrix::encode(const float *from, void *to) const {
    if (is_exact()) {
        memcpy(to, from, wire_bytes());
    } else if (precision == Precision::BF16) {
        encode_bf16(reinterpret_cast<const Bits *>(from), static_cast<LooseHalf *>(to), count());
    } else {
        uint8_t *row = static_cast<uint8_t *>(to);
        const size_t row_bytes = columns + groups_of(columns) * sizeof(float);
        for (size_t i = 0; i < rows; i++, row += row_bytes) encode_row(from + i * columns, row, columns);
    }
}

void Matrix::decode(const void *from, float *to) const {
    if (is_exact()) {
        memcpy(to, from, wire_bytes());
    } else if (precision == Precision::BF16) {
        decode_bf16(static_cast<const LooseHalf *>(from), to, count());
    } else {
        const uint8_t *row = static_cast<const uint8_t *>(from);
        const size_t row_bytes = columns + groups_of(columns) * sizeof(float);
        for (size_t i = 0; i < rows; i++, row += row_bytes) decode_row(row, to + i * columns, columns);
    }
}

void Matrix::add(const void *from, float *sum) const {
    if (precision == Precision::F32) {
        add_f32(static_cast<const Loose *>(from), sum, count());
    } else if (precision == Precision::I32) {
        add_i32(static_cast<const Bits *>(from), reinterpret_cast<Bits *>(sum), count());
    } else if (precision == Precision::BF16) {
        add_bf16(static_cast<const LooseHalf *>(from), sum, count());
    } else {
        const uint8_t *row = static_cast<const uint8_t *>(from);
        const size_t row_bytes = columns + groups_of(columns) * sizeof(float);
        for (size_t i = 0; i < rows; i++, row += row_bytes) add_row(row, sum + i * columns, columns);
    }
}

void Matrix::round(const float *from, float *to, void *wire) const {
    if (is_exact()) {
        if (to != from) memcpy(to, from, wire_bytes());
    } else {
        encode(from, wire);
        decode(wire, to);
    }
}

bool Matrix::is_finite(const float *values) const {
    return precision == Precision::I32 || tpiedge::is_finite(values, count());
}

}  // namespace tpiedge
