// How partial sums travel: what arrives is what rounding at the sender gives, from and to any address.
#include "../../tpiedge/transport/native/wire.h"

#include "check.h"

namespace {

using tpiedge::Matrix;
using tpiedge::Precision;

void check_matrix(Check &check, Random &random, Precision precision, double error) {
    const int64_t rows = random.between(1, 5), columns = random.between(1, 200), count = rows * columns;
    const Matrix matrix{precision, static_cast<size_t>(rows), static_cast<size_t>(columns)};
    const int64_t wire_nbytes = static_cast<int64_t>(matrix.wire_bytes()), shift = random.between(0, 3);
    const Floats from = random_floats(random, count), before = random_floats(random, count);
    Array<uint8_t> wire(shift + wire_nbytes), room(wire_nbytes);
    Floats arrived(count), rounded(count), sum(count);
    matrix.encode(from.data(), wire.data() + shift);
    matrix.decode(wire.data() + shift, arrived.data());
    matrix.round(from.data(), rounded.data(), room.data());
    memcpy(sum.data(), before.data(), static_cast<size_t>(count) * sizeof(float));
    matrix.add(wire.data() + shift, sum.data());
    check.shape(rows, columns, shift);
    for (int64_t i = 0; i < count; i++) {
        check.close(arrived[i], from[i], error);
        check.same(rounded[i], arrived[i]);
        check.same(sum[i], before[i] + arrived[i]);
    }
    if (!tpiedge::is_finite(from.data(), static_cast<size_t>(count))) check.same(0, 1);
}

void check_integers(Check &check, Random &random) {
    const int64_t rows = random.between(1, 5), columns = random.between(1, 200), count = rows * columns;
    const Matrix matrix{Precision::I32, static_cast<size_t>(rows), static_cast<size_t>(columns)};
    const int64_t nbytes = static_cast<int64_t>(matrix.wire_bytes()), shift = random.between(0, 3);
    Array<uint32_t> from(count), sum(count), wanted(count), back(count);
    for (int64_t i = 0; i < count; i++) {
        from[i] = static_cast<uint32_t>(random.bits());  // some look like infinity, and many sums wrap around
        sum[i] = static_cast<uint32_t>(random.bits());
        wanted[i] = from[i] + sum[i];
    }
    Array<uint8_t> wire(shift + nbytes);
    const auto floats = [](Array<uint32_t> &bits) { return reinterpret_cast<float *>(bits.data()); };
    check.shape(rows, columns, shift);
    matrix.encode(floats(from), wire.data() + shift);
    check.same_bytes(wire.data() + shift, from.data(), nbytes);
    matrix.add(wire.data() + shift, floats(sum));
    check.same_bytes(sum.data(), wanted.data(), nbytes);
    matrix.decode(wire.data() + shift, floats(back));
    check.same_bytes(back.data(), from.data(), nbytes);
    matrix.round(floats(from), floats(sum), nullptr);
    check.same_bytes(sum.data(), from.data(), nbytes);
    sum[0] = 0x7f800000;
    if (!matrix.is_finite(floats(sum)) || tpiedge::is_finite(floats(sum), static_cast<size_t>(count))) check.same(0, 1);
}

}  // namespace

void check_wire() {
    Random random(9);
    Check f32("wire_f32", "any"), bf16("wire_bf16", "any"), int8("wire_int8", "any"),
        i32("wire_i32", "any");
    for (int i = 0; i < 40; i++) {
        check_matrix(f32, random, Precision::F32, 0);
        check_matrix(bf16, random, Precision::BF16, 2.0 / 256);
        check_matrix(int8, random, Precision::INT8, 2.0 / 127);
        check_integers(i32, random);
    }
}
