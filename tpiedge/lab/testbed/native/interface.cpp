// The C interface that tpiedge/lab/testbed/switch_native.py calls.
#ifdef __linux__

#include <exception>

#include "switch.h"

#define TPIEDGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tpiedge::LinkSettings;
using tpiedge::PortSettings;
using tpiedge::Switch;

constexpr int ABI = 1;  // as in switch/library.py

}  // namespace

TPIEDGE_EXPORT int tpiedge_switch_abi(void) { return ABI; }

// Null where memory or descriptors are short.
TPIEDGE_EXPORT void *tpiedge_switch_open(const LinkSettings *links, int64_t link_count, const PortSettings *ports,
                                         int64_t port_count, const int32_t *paths, uint64_t seed) {
    try {
        auto made = std::make_unique<Switch>(std::vector<LinkSettings>(links, links + link_count),
                                             std::vector<PortSettings>(ports, ports + port_count), paths, seed);
        return made->is_open() ? made.release() : nullptr;
    } catch (const std::exception &) {
        return nullptr;
    }
}

TPIEDGE_EXPORT int tpiedge_switch_run(void *handle) { return static_cast<Switch *>(handle)->run(); }

TPIEDGE_EXPORT void tpiedge_switch_stop(void *handle) { static_cast<Switch *>(handle)->stop(); }

// 0 where it was not in force in time.
TPIEDGE_EXPORT int tpiedge_switch_change(void *handle, int64_t link, const LinkSettings *settings, int64_t timeout_ms) {
    try {
        return static_cast<Switch *>(handle)->change(static_cast<size_t>(link), *settings, timeout_ms);
    } catch (const std::exception &) {
        return 0;
    }
}

// In the order of LINK_COUNTERS in switch/library.py.
TPIEDGE_EXPORT void tpiedge_switch_link_counters(const void *handle, int64_t link, int64_t *values) {
    const auto &counters = static_cast<const Switch *>(handle)->counters(static_cast<size_t>(link));
    *values++ = counters.packets.get();
    *values++ = counters.bytes.get();
    *values++ = counters.dropped.get();
    *values++ = counters.lost.get();
}

// In the order of TOTALS in switch/library.py.
TPIEDGE_EXPORT void tpiedge_switch_totals(const void *handle, int64_t *values) {
    const auto &totals = static_cast<const Switch *>(handle)->totals();
    *values++ = totals.received.get();
    *values++ = totals.delivered.get();
    *values++ = totals.foreign.get();
    *values++ = totals.crowded_out.get();
    *values++ = totals.undelivered.get();
    *values++ = totals.late_ns.get();
    *values++ = totals.latest_ns.get();
}

TPIEDGE_EXPORT void tpiedge_switch_close(void *handle) { delete static_cast<Switch *>(handle); }

#endif
