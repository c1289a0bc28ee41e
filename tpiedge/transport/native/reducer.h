// One all-reduce of a fixed size in one call: send, receive and add, over the libzmq and the socket of pyzmq.
#ifndef TPIEDGE_REDUCER_H
#define TPIEDGE_REDUCER_H

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

namespace tpiedge {

constexpr size_t HEADER_BYTES = 64;  // FLAT_BYTES in wire/flat.py

// Functions of the libzmq in use, in the order of native_library.py.
struct Zmq {
    int (*init)(void *message);
    int (*init_size)(void *message, size_t bytes);
    void *(*data)(void *message);
    size_t (*size)(const void *message);
    int (*more)(const void *message);
    const char *(*gets)(const void *message, const char *property);
    int (*send)(void *message, void *socket, int flags);
    int (*recv)(void *message, void *socket, int flags);
    int (*close)(void *message);
};

// A zmq_msg_t.
class Message {
public:
    explicit Message(const Zmq *zmq) : zmq_(zmq) { zmq_->init(raw_); }
    ~Message() { zmq_->close(raw_); }
    Message(const Message &) = delete;
    Message &operator=(const Message &) = delete;

    // Makes an empty message one of `bytes`; false where there is no memory, and it is empty then.
    bool resize(size_t bytes);
    // A signal does not end these: of a message of two parts, either both have gone through or neither.
    bool send(void *socket);
    bool send_more(void *socket);
    bool recv_rest(void *socket);
    // Waits for as long as the socket's ZMQ_RCVTIMEO, or until a signal comes.
    bool recv(void *socket) { return zmq_->recv(raw_, socket, 0) >= 0; }
    void clear();
    char *data() { return static_cast<char *>(zmq_->data(raw_)); }
    size_t size() const { return zmq_->size(raw_); }
    bool more() const { return zmq_->more(raw_) != 0; }
    const char *property(const char *name) const { return zmq_->gets(raw_, name); }

private:
    const Zmq *zmq_;
    alignas(8) unsigned char raw_[64];
};

// What was received: by a ROUTER with the route of its sender, by a DEALER without.
struct Received {
    explicit Received(const Zmq *zmq) : route(zmq), frame(zmq) {}
    Message route;
    Message frame;
};

// The numbering of Combine in tpiedge/transport/reduction.py.
enum class Combine { TAKE = 0, ADD = 1, SUM = 2 };

struct Layout {
    float *payload;  // scratch, of the frame's tensor
    size_t payload_bytes;
    size_t place_at;  // in every header
    size_t place_bytes;
};

class Reducer {
public:
    static constexpr int DONE = -1;

    // `changes` counts whatever may make a peer unwelcome; a call does nothing once it differs from `seen`.
    Reducer(const Zmq &zmq, void *socket, Combine combine, const Layout &layout, const char *header,
            const uint32_t *changes, uint32_t seen);
    ~Reducer();
    Reducer(const Reducer &) = delete;
    Reducer &operator=(const Reducer &) = delete;

    // In the order of ranks. `header`: what this peer should send, whatever the place. No route: the socket is a DEALER.
    void add_peer(const char *route, size_t route_bytes, const char *header);

    // The all-reduce of `own` in place: DONE. Otherwise how many peers have what it sent to them; `own` is as it was, and
    // what was received and is still of use is in `received`.
    int run(const char *place, float *own);

    size_t received_count() const { return count_; }
    Received &received(size_t index) { return *received_[index]; }
    void release();

private:
    struct Peer {
        std::string route;
        std::string header;
        const char *part = nullptr;  // in what was received
    };

    int exchange(float *own);
    int sum_and_answer(float *own);
    void address(const char *place);
    bool send(const Peer &peer, const void *payload);
    const Peer *receive_expected();
    Peer *sender_of(Received &received);
    bool add(const void *left, const void *right);
    bool changed() const;
    bool is_router() const { return !peers_.front().route.empty(); }

    const Zmq zmq_;
    void *const socket_;
    const Combine combine_;
    const Layout layout_;
    std::string header_;
    const uint32_t *const changes_;
    const uint32_t seen_;
    std::vector<Peer> peers_;
    std::vector<Received *> received_;  // the first `count_` are in use
    size_t count_ = 0;
};

}  // namespace tpiedge

#endif
