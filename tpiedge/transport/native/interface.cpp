// The C interface that tpiedge/transport/native_library.py and native_reducer.py call. They check pointers and sizes
// before.
#include <exception>

#include "reducer.h"

#define TPIEDGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tpiedge::Matrix;
using tpiedge::Received;
using tpiedge::Reducer;

constexpr int ABI = 5;  // as in native_library.py

struct ReducePlan {  // as in native_library.py
    int64_t combine;
    int64_t rank;
    int64_t precision;
    int64_t rows;
    int64_t columns;
    float *sum;
    const char *header;
    int64_t place_at;
    int64_t place_bytes;
    const uint32_t *changes;
    int64_t seen;
};

struct View {  // as in native_library.py
    void *socket;
    const void *route;
    int64_t route_bytes;
    const void *frame;
    int64_t frame_bytes;
    const char *user;
    const char *descriptor;
    int64_t more;
};

Matrix matrix(int64_t precision, int64_t rows, int64_t columns) {
    return Matrix{static_cast<tpiedge::Precision>(precision), static_cast<size_t>(rows), static_cast<size_t>(columns)};
}

}  // namespace

TPIEDGE_EXPORT int tpiedge_transport_abi(void) { return ABI; }

TPIEDGE_EXPORT int64_t tpiedge_wire_bytes(int64_t precision, int64_t rows, int64_t columns) {
    return static_cast<int64_t>(matrix(precision, rows, columns).wire_bytes());
}

TPIEDGE_EXPORT void tpiedge_wire_encode(int64_t precision, int64_t rows, int64_t columns, const float *from, void *to) {
    matrix(precision, rows, columns).encode(from, to);
}

TPIEDGE_EXPORT void tpiedge_wire_decode(int64_t precision, int64_t rows, int64_t columns, const void *from, float *to) {
    matrix(precision, rows, columns).decode(from, to);
}

// Returns null if memory is short.
TPIEDGE_EXPORT void *tpiedge_reducer_open(const tpiedge::Zmq *zmq, const ReducePlan *plan) {
    const tpiedge::Layout layout{static_cast<tpiedge::Combine>(plan->combine),
                                 static_cast<size_t>(plan->rank),
                                 matrix(plan->precision, plan->rows, plan->columns),
                                 plan->sum,
                                 static_cast<size_t>(plan->place_at),
                                 static_cast<size_t>(plan->place_bytes)};
    try {
        return new Reducer(*zmq, layout, plan->header, plan->changes, static_cast<uint32_t>(plan->seen));
    } catch (const std::exception &) {
        return nullptr;
    }
}

// Returns 0 if memory is short; the reducer can then only be closed.
TPIEDGE_EXPORT int tpiedge_reducer_add_peer(void *handle, void *socket, const char *route, int64_t route_bytes,
                                            const char *header) {
    try {
        static_cast<Reducer *>(handle)->add_peer(socket, route, static_cast<size_t>(route_bytes), header);
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

// Fills `view`, which is valid until the next run or the release.
TPIEDGE_EXPORT void tpiedge_reducer_view(void *handle, int64_t index, View *view) {
    Received &received = static_cast<Reducer *>(handle)->received(static_cast<size_t>(index));
    view->socket = received.socket;
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
