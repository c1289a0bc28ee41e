// Products in every format of panels.h, of any bytes: the same on all instruction sets. What they are, the tests in Python say.
#include "../../tpiedge/kernels/native/panels.h"

#include "check.h"

namespace {

// A unit of any codes, whose scales are numbers below 2.
Array<uint8_t> random_unit(Random &random, int64_t format, int64_t outputs, int64_t inputs) {
    const int64_t panels = (outputs + 15) / 16, whole = tpiedge::block_groups(format) * 32;
    Array<uint8_t> made(panels * panel_nbytes(inputs, format));
    for (uint8_t &byte : made) byte = static_cast<uint8_t>(random.bits());
    uint8_t *at = made.data();
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t i = 0; i < inputs; i += whole) {
            const int64_t some = inputs - i < whole ? inputs - i : whole;
            for (int64_t byte = 1; byte < tpiedge::header_nbytes(format, (some + 31) / 32); byte += 2) at[byte] &= 0x3f;
            at += tpiedge::block_nbytes(format, some);
        }
    return made;
}

void check_format(void *handle, Check &check, Random &random, int64_t format) {
    const int64_t tokens = random.coin() ? 1 : random.between(2, 20), outputs = random.between(1, 40);
    const int64_t inputs = random.coin() ? 32 * random.between(1, 20) : random.between(1, 600);
    check.shape(format, tokens, outputs, inputs);
    const Floats x = random_floats(random, tokens * inputs);
    const Array<uint8_t> unit = random_unit(random, format, outputs, inputs);
    Floats y(tokens * outputs);
    const PanelWeight project{unit.data(), y.data(), format, unit.size(), outputs, inputs, outputs, nullptr, 0, 0, outputs};
    complete(tpiedge_panels_project(handle, x.data(), tokens, &project, 1));
    for (const float value : y) check.same(value, value);
    Array<int64_t> sums(tokens * outputs);
    const PanelWeight contract{unit.data(), sums.data(), format, unit.size(), inputs, outputs, inputs, nullptr, -20, 0, 0};
    complete(tpiedge_panels_contract(handle, x.data(), tokens, &contract, 1));
    for (const int64_t value : sums) check.equal(value, value);
}

}  // namespace

void check_formats(void *handle, const char *isa) {
    Random random(9);
    Check check("formats", isa);
    for (int i = 0; i < 12; i++)
        for (int64_t format = tpiedge::Q8; format <= tpiedge::MXFP4; format++) check_format(handle, check, random, format);
}
