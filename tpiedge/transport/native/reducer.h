// One all-reduce of a fixed size in one call: send, receive and add, over the libzmq and the sockets of pyzmq.
#ifndef TPIEDGE_REDUCER_H
#define TPIEDGE_REDUCER_H

#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <string>
#include <vector>

#include "message.h"
#include "wire.h"

namespace tpiedge {

constexpr size_t HEADER_BYTES = 64;  // FLAT_BYTES in wire/codec.py

// The numbering of Combine in tpiedge/transport/native_reducer.py.
enum class Combine { TAKE = 0, EXCHANGE = 1, SUM = 2 };

struct Layout {
    Combine combine;
    size_t rank;  // the own part's place in the order of summation
    Matrix tensor;
    float *sum;  // scratch, as large as the tensor in f32 or i32
    size_t place_at;  // in every header
    size_t place_bytes;
};

// A received message: from a ROUTER with its sender's route, from a DEALER without.
struct Received {
    explicit Received(const Zmq *zmq) : route(zmq), frame(zmq) {}
    void *socket = nullptr;
    bool used = false;  // as the part of its sender
    Message route;
    Message frame;
};

// Receives every peer's part of one all-reduce. Later messages are kept for the next one. Every part, the own one too,
// and the sum are rounded as they travel: the bits are those of every other collective.
class Reducer {
public:
    static constexpr int DONE = -1;
    static constexpr int DONE_AND_KEPT = -2;

    // `changes` counts changes of the admitted peers; a call does nothing once it differs from `seen`.
    Reducer(const Zmq &zmq, const Layout &layout, const char *header, const uint32_t *changes, uint32_t seen);
    Reducer(const Reducer &) = delete;
    Reducer &operator=(const Reducer &) = delete;

    // Call it in the order of ranks. `header`: of the peer's part, with any place. Without a route the socket is a
    // DEALER, and only this peer speaks over it.
    void add_peer(void *socket, const char *route, size_t route_bytes, const char *header);

    // All-reduces `own` in place. Returns DONE, or DONE_AND_KEPT if `received` has more messages. Otherwise returns how
    // many peers took the frame; `own` is unchanged, and the received messages that are still of use are in
    // `received`.
    int run(const char *place, float *own);

    // In the order of arrival.
    size_t received_count() const { return count_; }
    Received &received(size_t index) { return *received_[index]; }
    void release();

private:
    struct Peer {
        size_t link;
        std::string route;
        std::string header;
        const char *part;  // in the received frame
    };

    struct Link {
        void *socket;
        bool is_router;
        size_t peers;
        size_t missing;  // parts
    };

    void begin(const char *place);
    int take(float *own);
    int exchange(float *own);
    int sum_and_answer(float *own);
    bool make(Message &frame, const float *values) const;
    int send_to_all(Message &frame);
    bool send(const Peer &peer, Message &frame);
    bool collect();
    Received *receive(const Link &link);
    bool is_foreseen(Received &received);
    Peer *sender_of(Received &received);
    void add_up();
    void drop_used();
    bool changed() const;

    const Zmq zmq_;
    const Layout layout_;
    std::string header_;
    std::string wire_;  // scratch
    const uint32_t *const changes_;
    const uint32_t seen_;
    std::vector<Link> links_;
    std::vector<Peer> peers_;
    std::vector<std::unique_ptr<Received>> received_;  // the first `count_` are in use
    size_t count_ = 0;
    const char *own_part_ = nullptr;  // as the others get it
    size_t summed_ = 0;  // number of parts in the sum, in the order of ranks
};

}  // namespace tpiedge

#endif
