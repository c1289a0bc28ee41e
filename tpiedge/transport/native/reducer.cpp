#include "reducer.h"

#include <errno.h>
#include <string.h>

namespace tpiedge {

namespace {

constexpr int DONT_WAIT = 1;  // ZMQ_DONTWAIT
constexpr int MORE = 2;       // ZMQ_SNDMORE

// A received tensor starts wherever libzmq put the message.
typedef float Loose __attribute__((aligned(1), may_alias));
typedef uint32_t LooseBits __attribute__((aligned(1), may_alias));

constexpr uint32_t EXPONENT = 0x7f800000;  // all ones: infinity or not a number

bool is_finite(const void *values, size_t count) {
    const LooseBits *bits = static_cast<const LooseBits *>(values);
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) found |= (bits[i] & EXPONENT) == EXPONENT;
    return !found;
}

// Until it has done its work or failed; none of them waits. Python's handlers run when the call is over.
template <typename Call>
bool despite_signals(Call call) {
    int result;
    do {
        result = call();
    } while (result < 0 && errno == EINTR);
    return result >= 0;
}

}  // namespace

bool Message::resize(size_t bytes) {
    if (zmq_->init_size(raw_, bytes) == 0) return true;
    // Closing what libzmq leaves behind then would follow a null pointer.
    zmq_->init(raw_);
    return false;
}

bool Message::send(void *socket) {
    return despite_signals([&] { return zmq_->send(raw_, socket, DONT_WAIT); });
}

bool Message::send_more(void *socket) {
    return despite_signals([&] { return zmq_->send(raw_, socket, DONT_WAIT | MORE); });
}

bool Message::recv_rest(void *socket) {
    return despite_signals([&] { return zmq_->recv(raw_, socket, DONT_WAIT); });
}

void Message::clear() {
    zmq_->close(raw_);
    zmq_->init(raw_);
}

Reducer::Reducer(const Zmq &zmq, void *socket, Combine combine, const Layout &layout, const char *header,
                 const uint32_t *changes, uint32_t seen)
    : zmq_(zmq),
      socket_(socket),
      combine_(combine),
      layout_(layout),
      header_(header, HEADER_BYTES),
      changes_(changes),
      seen_(seen) {}

Reducer::~Reducer() {
    for (Received *received : received_) delete received;
}

void Reducer::add_peer(const char *route, size_t route_bytes, const char *header) {
    received_.reserve(received_.size() + 1);
    peers_.push_back(Peer{std::string(route, route_bytes), std::string(header, HEADER_BYTES)});
    received_.push_back(new Received(&zmq_));
}

int Reducer::run(const char *place, float *own) {
    release();
    if (peers_.empty() || changed()) return 0;
    address(place);
    const int outcome = combine_ == Combine::SUM ? sum_and_answer(own) : exchange(own);
    if (outcome == DONE) release();
    return outcome;
}

// Of a leaf, and of both ranks of a pair.
int Reducer::exchange(float *own) {
    if (!send(peers_.front(), own)) return 0;
    const Peer *peer = receive_expected();
    if (!peer) return 1;
    if (combine_ == Combine::TAKE) {
        memcpy(own, peer->part, layout_.payload_bytes);
        return DONE;
    }
    if (!add(own, peer->part)) return 1;
    memcpy(own, layout_.payload, layout_.payload_bytes);
    return DONE;
}

// Of the root of a star.
int Reducer::sum_and_answer(float *own) {
    for (size_t i = 0; i < peers_.size(); i++) {
        if (!receive_expected()) return 0;
    }
    const void *sum = own;
    bool finite = true;
    for (const Peer &peer : peers_) {
        finite = add(sum, peer.part);
        sum = layout_.payload;
    }
    if (!finite) return 0;
    int sent = 0;
    for (const Peer &peer : peers_) {
        if (!send(peer, sum)) {
            // Once one peer has the sum, the parts are of no more use.
            if (sent) release();
            return sent;
        }
        sent++;
    }
    memcpy(own, sum, layout_.payload_bytes);
    return DONE;
}

void Reducer::address(const char *place) {
    header_.replace(layout_.place_at, layout_.place_bytes, place, layout_.place_bytes);
    for (Peer &peer : peers_) peer.header.replace(layout_.place_at, layout_.place_bytes, place, layout_.place_bytes);
}

bool Reducer::send(const Peer &peer, const void *payload) {
    Message frame(&zmq_);
    if (!frame.resize(HEADER_BYTES + layout_.payload_bytes)) return false;
    memcpy(frame.data(), header_.data(), HEADER_BYTES);
    memcpy(frame.data() + HEADER_BYTES, payload, layout_.payload_bytes);
    if (!peer.route.empty()) {
        Message route(&zmq_);
        if (!route.resize(peer.route.size())) return false;
        memcpy(route.data(), peer.route.data(), peer.route.size());
        if (!route.send_more(socket_)) return false;
    }
    return frame.send(socket_);
}

// The next message, kept whatever it is: its sender where it is just what is expected of him, otherwise null.
const Reducer::Peer *Reducer::receive_expected() {
    Received &received = *received_[count_];
    if (is_router()) {
        // The second part of a message is there together with the first.
        if (!received.route.recv(socket_) || !received.frame.recv_rest(socket_)) return nullptr;
    } else if (!received.frame.recv(socket_)) {
        return nullptr;
    }
    count_++;
    Peer *peer = changed() ? nullptr : sender_of(received);
    if (peer) peer->part = received.frame.data() + HEADER_BYTES;
    return peer;
}

Reducer::Peer *Reducer::sender_of(Received &received) {
    Message &frame = received.frame;
    if (frame.size() != HEADER_BYTES + layout_.payload_bytes || frame.more()) return nullptr;
    for (Peer &peer : peers_) {
        if (peer.part || peer.route.size() != received.route.size()) continue;
        if (memcmp(peer.route.data(), received.route.data(), peer.route.size())) continue;
        return memcmp(frame.data(), peer.header.data(), HEADER_BYTES) ? nullptr : &peer;
    }
    return nullptr;
}

// Into the scratch, which may be `left`; false where the sum is not finite (neither is it then where one part is not).
bool Reducer::add(const void *left, const void *right) {
    const size_t count = layout_.payload_bytes / sizeof(float);
    const Loose *a = static_cast<const Loose *>(left);
    const Loose *b = static_cast<const Loose *>(right);
    for (size_t i = 0; i < count; i++) layout_.payload[i] = a[i] + b[i];
    return is_finite(layout_.payload, count);
}

bool Reducer::changed() const { return changes_ && __atomic_load_n(changes_, __ATOMIC_ACQUIRE) != seen_; }

void Reducer::release() {
    for (size_t i = 0; i < count_; i++) {
        received_[i]->route.clear();
        received_[i]->frame.clear();
    }
    count_ = 0;
    for (Peer &peer : peers_) peer.part = nullptr;
}

}  // namespace tpiedge
