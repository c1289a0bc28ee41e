// Implements reducer.h.
#include "reducer.h"

#include <string.h>

namespace tpiedge {

namespace {

// Messages kept per peer, on average: the next all-reduce's part or, after a step's last one, a plan and hidden states.
constexpr size_t MOST_KEPT = 3;
// Frames up to this length may be the transport's own, which Python must see at once.
constexpr size_t NOTE_BYTES = 9;

}  // namespace

Reducer::Reducer(const Zmq &zmq, const Layout &layout, const char *header, const uint32_t *changes, uint32_t seen)
    : zmq_(zmq),
      layout_(layout),
      header_(header, HEADER_BYTES),
      wire_(layout.tensor.wire_bytes(), '\0'),
      changes_(changes),
      seen_(seen) {}

void Reducer::add_peer(void *socket, const char *route, size_t route_bytes, const char *header) {
    size_t link = 0;
    while (link < links_.size() && links_[link].socket != socket) link++;
    if (link == links_.size()) links_.push_back(Link{socket, route_bytes != 0, 0, 0});
    links_[link].peers++;
    peers_.push_back(Peer{link, std::string(route, route_bytes), std::string(header, HEADER_BYTES), nullptr});
    for (size_t i = 0; i <= MOST_KEPT; i++) received_.push_back(std::make_unique<Received>(&zmq_));
}

int Reducer::run(const char *place, float *own) {
    if (peers_.empty() || changed()) return 0;
    begin(place);
    const int outcome = layout_.combine == Combine::TAKE       ? take(own)
                        : layout_.combine == Combine::EXCHANGE ? exchange(own)
                                                               : sum_and_answer(own);
    if (outcome != DONE) return outcome;
    drop_used();
    return count_ ? DONE_AND_KEPT : DONE;
}

void Reducer::begin(const char *place) {
    header_.replace(layout_.place_at, layout_.place_bytes, place, layout_.place_bytes);
    for (Peer &peer : peers_) {
        peer.header.replace(layout_.place_at, layout_.place_bytes, place, layout_.place_bytes);
        peer.part = nullptr;
    }
    for (Link &link : links_) link.missing = link.peers;
    own_part_ = nullptr;
    summed_ = 0;
}

// The all-reduce of a star's leaf.
int Reducer::take(float *own) {
    Message frame(&zmq_);
    if (!make(frame, own)) return 0;
    const int sent = send_to_all(frame);
    if (!sent || !collect()) return sent;
    layout_.tensor.decode(peers_.front().part, own);
    return DONE;
}

// The all-reduce of each rank of a mesh.
int Reducer::exchange(float *own) {
    Message frame(&zmq_);
    if (!make(frame, own)) return 0;
    const int sent = send_to_all(frame);
    if (static_cast<size_t>(sent) < peers_.size()) return sent;
    own_part_ = frame.data() + HEADER_BYTES;
    if (!collect() || !layout_.tensor.is_finite(layout_.sum)) return sent;
    layout_.tensor.round(layout_.sum, layout_.sum, &wire_[0]);
    memcpy(own, layout_.sum, layout_.tensor.count() * sizeof(float));
    return DONE;
}

// The all-reduce of a star's root.
int Reducer::sum_and_answer(float *own) {
    layout_.tensor.round(own, layout_.sum, &wire_[0]);
    summed_ = 1;
    Message frame(&zmq_);
    if (!collect() || !layout_.tensor.is_finite(layout_.sum) || !make(frame, layout_.sum)) return 0;
    const int sent = send_to_all(frame);
    if (static_cast<size_t>(sent) < peers_.size()) {
        // Once one peer has the sum, the parts are of no more use.
        if (sent) drop_used();
        return sent;
    }
    layout_.tensor.decode(frame.data() + HEADER_BYTES, own);
    return DONE;
}

bool Reducer::make(Message &frame, const float *values) const {
    if (!frame.resize(HEADER_BYTES + layout_.tensor.wire_bytes())) return false;
    memcpy(frame.data(), header_.data(), HEADER_BYTES);
    layout_.tensor.encode(values, frame.data() + HEADER_BYTES);
    return true;
}

// Returns how many peers, in order, took the frame.
int Reducer::send_to_all(Message &frame) {
    int sent = 0;
    for (const Peer &peer : peers_) {
        if (!send(peer, frame)) break;
        sent++;
    }
    return sent;
}

bool Reducer::send(const Peer &peer, Message &frame) {
    Message copy(&zmq_);
    if (!copy.share(frame)) return false;
    void *socket = links_[peer.link].socket;
    if (!peer.route.empty()) {
        Message route(&zmq_);
        if (!route.resize(peer.route.size())) return false;
        memcpy(route.data(), peer.route.data(), peer.route.size());
        if (!route.send_more(socket)) return false;
    }
    return copy.send(socket);
}

// Returns true once every peer's part is there; false if something unforeseen came last, or nothing in time.
bool Reducer::collect() {
    add_up();
    for (size_t i = 0; i < count_; i++) {
        if (!is_foreseen(*received_[i])) return false;
    }
    // In any order: all parts are needed.
    for (const Link &link : links_) {
        while (link.missing) {
            Received *received = receive(link);
            if (!received || !is_foreseen(*received)) return false;
        }
    }
    return true;
}

// Receives and keeps the next message, whatever it is.
Received *Reducer::receive(const Link &link) {
    if (count_ == received_.size()) return nullptr;
    Received *received = received_[count_].get();
    received->socket = link.socket;
    if (link.is_router) {
        // The second part of a message is there together with the first.
        if (!received->route.recv(link.socket) || !received->frame.recv_rest(link.socket)) return nullptr;
    } else if (!received->frame.recv(link.socket)) {
        return nullptr;
    }
    count_++;
    return received;
}

// Whether it is a part, which is then taken, or may follow its sender's part.
bool Reducer::is_foreseen(Received &received) {
    Message &frame = received.frame;
    Peer *peer = changed() || frame.more() ? nullptr : sender_of(received);
    if (!peer) return false;
    if (peer->part) {
        return frame.size() > NOTE_BYTES && frame.size() <= HEADER_BYTES + layout_.tensor.most_bytes();
    }
    if (frame.size() != HEADER_BYTES + layout_.tensor.wire_bytes()) return false;
    if (memcmp(frame.data(), peer->header.data(), HEADER_BYTES)) return false;
    peer->part = frame.data() + HEADER_BYTES;
    received.used = true;
    links_[peer->link].missing--;
    add_up();
    return true;
}

Reducer::Peer *Reducer::sender_of(Received &received) {
    for (Peer &peer : peers_) {
        if (links_[peer.link].socket != received.socket || peer.route.size() != received.route.size()) continue;
        if (!memcmp(peer.route.data(), received.route.data(), peer.route.size())) return &peer;
    }
    return nullptr;
}

// Adds the parts whose turn it is; a sum is not finite if one of its parts is not.
void Reducer::add_up() {
    if (layout_.combine == Combine::TAKE) return;
    for (; summed_ <= peers_.size(); summed_++) {
        const bool own = summed_ == layout_.rank;
        const char *part = own ? own_part_ : peers_[summed_ - (summed_ > layout_.rank)].part;
        if (!part) return;
        if (summed_) {
            layout_.tensor.add(part, layout_.sum);
        } else {
            layout_.tensor.decode(part, layout_.sum);
        }
    }
}

void Reducer::drop_used() {
    size_t kept = 0;
    for (size_t i = 0; i < count_; i++) {
        Received &received = *received_[i];
        if (received.used) {
            received.used = false;
            received.route.clear();
            received.frame.clear();
        } else {
            received_[kept++].swap(received_[i]);
        }
    }
    count_ = kept;
}

void Reducer::release() {
    for (size_t i = 0; i < count_; i++) received_[i]->used = true;
    drop_used();
}

bool Reducer::changed() const { return changes_ && __atomic_load_n(changes_, __ATOMIC_ACQUIRE) != seen_; }

}  // namespace tpiedge
