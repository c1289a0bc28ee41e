// What a handle keeps for its calls is bounded, however large their operands were.
#include "../../tpiedge/kernels/native/context.h"
#include "check.h"

void check_rooms(void *handle) {
    const auto &context = *static_cast<const tpiedge::Context *>(handle);
    for (const int64_t nbytes : {context.activations.nbytes(), context.sums.nbytes(), context.wide_sums.nbytes()})
        if (nbytes < 3 << 20 || nbytes > 4 << 20) {
            fprintf(stderr, "after large products a room has %lld bytes\n", static_cast<long long>(nbytes));
            exit(1);
        }
    const int64_t nbytes = context.experts.nbytes();
    if (nbytes < 8 << 20 || nbytes > 9 << 20) {
        fprintf(stderr, "after large experts their room has %lld bytes\n", static_cast<long long>(nbytes));
        exit(1);
    }
}
