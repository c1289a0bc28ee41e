// The C interface that tpiedge/transport/native_reducer.py calls. Pointers and sizes were checked there.
#include <exception>

#include "reducer.h"

#define TPIEDGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tpiedge::Received;
using tpiedge::Reducer;

constexpr int ABI = 2;  // as in native_library.py

struct View {  // as in native_library.py
    const void *route;
    int64_t route_bytes;
    const void *frame;
    int64_t frame_bytes;
    const char *user;
    const char *descriptor;
    int64_t more;
};

}  // namespace

TPIEDGE_EXPORT int tpiedge_transport_abi(void) { return ABI; }

// Null where memory is short.
TPIEDGE_EXPORT void *tpiedge_reducer_open(const tpiedge::Zmq *zmq, void *socket, int combine, float *payload,
                                          int64_t payload_bytes, const char *header, int64_t place_at,
                                          int64_t place_bytes, const uint32_t *changes, uint32_t seen) {
    const tpiedge::Layout layout{payload, static_cast<size_t>(payload_bytes), static_cast<size_t>(place_at),
                                 static_cast<size_t>(place_bytes)};
    try {
        return new Reducer(*zmq, socket, static_cast<tpiedge::Combine>(combine), layout, header, changes, seen);
    } catch (const std::exception &) {
        return nullptr;
    }
}

// 0 where memory is short; the reducer can then only be closed.
TPIEDGE_EXPORT int tpiedge_reducer_add_peer(void *handle, const char *route, int64_t route_bytes, const char *header) {
    try {
        static_cast<Reducer *>(handle)->add_peer(route, static_cast<size_t>(route_bytes), header);
        return 1;
    } catch (const std::exception &) {
        return 0;
    }
}

TPIEDGE_EXPORT int tpiedge_reducer_run(void *handle, const char *place, float *own) {
    return static_cast<Reducer *>(handle)->run(place, own);
}

TPIEDGE_EXPORT int64_t tpiedge_reducer_received(const void *handle) {
    return static_cast<int64_t>(static_cast<const Reducer *>(handle)->received_count());
}

// Valid until the next run or the release.
TPIEDGE_EXPORT void tpiedge_reducer_view(void *handle, int64_t index, View *view) {
    Received &received = static_cast<Reducer *>(handle)->received(static_cast<size_t>(index));
    view->route = received.route.data();
    view->route_bytes = static_cast<int64_t>(received.route.size());
    view->frame = received.frame.data();
    view->frame_bytes = static_cast<int64_t>(received.frame.size());
    view->user = received.frame.property("User-Id");
    view->descriptor = received.frame.property("__fd");
    view->more = received.frame.more();
}

TPIEDGE_EXPORT void tpiedge_reducer_release(void *handle) { static_cast<Reducer *>(handle)->release(); }

TPIEDGE_EXPORT void tpiedge_reducer_close(void *handle) { delete static_cast<Reducer *>(handle); }
