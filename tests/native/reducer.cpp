// All-reduces over sockets that are only played: peers that send what they should, and peers that send anything else, in
// messages with nothing behind their last byte. What comes out is the sum, or what went in.
#include <errno.h>

#include <deque>
#include <vector>

#include "../../tpiedge/transport/native/reducer.h"
#include "check.h"

extern "C" {
int tpiedge_transport_abi(void);
int64_t tpiedge_wire_bytes(int64_t precision, int64_t rows, int64_t columns);
void tpiedge_wire_encode(int64_t precision, int64_t rows, int64_t columns, const float *from, void *to);
void tpiedge_wire_decode(int64_t precision, int64_t rows, int64_t columns, const void *from, float *to);
void *tpiedge_reducer_open(const tpiedge::Zmq *zmq, const void *plan);
int tpiedge_reducer_add_peer(void *handle, void *socket, const char *route, int64_t route_bytes, const char *header);
int tpiedge_reducer_run(void *handle, const char *place, float *own);
int64_t tpiedge_reducer_received(const void *handle);
void tpiedge_reducer_view(void *handle, int64_t index, void *view);
void tpiedge_reducer_release(void *handle);
void tpiedge_reducer_close(void *handle);
}

namespace {

using tpiedge::HEADER_BYTES;
using Bytes = std::vector<char>;

constexpr int64_t PLACE_AT = 7, PLACE_BYTES = 13;
constexpr int DONE = -1, DONE_AND_KEPT = -2;
constexpr int64_t I32 = 3;

// As in tpiedge/transport/native/interface.cpp.
struct ReducePlan {
    int64_t combine, rank, precision, rows, columns;
    float *sum;
    const char *header;
    int64_t place_at, place_bytes;
    const uint32_t *changes;
    int64_t seen;
};

struct View {
    void *socket;
    const void *route;
    int64_t route_bytes;
    const void *frame;
    int64_t frame_bytes;
    const char *user, *descriptor;
    int64_t more;
};

// What a zmq_msg_t refers to; it is freed with its last reference.
struct Content {
    char *data;
    size_t size;
    bool more;
    int references;
};

Content *&content_of(const void *message) { return *static_cast<Content **>(const_cast<void *>(message)); }

Content *make_content(const char *from, size_t size, bool more) {
    char *data = static_cast<char *>(malloc(size));  // exactly as much
    if (!data && size) abort();
    if (from && size) memcpy(data, from, size);
    return new Content{data, size, more, 1};
}

struct Part {
    Bytes bytes;
    bool more;
};

struct Socket {
    std::deque<Part> arriving;
    size_t sends_left;  // then its peers' queues are full
    size_t sent;
};

Random *chance;
int64_t allocations_left;

int close_message(void *message) {
    Content *&content = content_of(message);
    if (content && --content->references == 0) {
        free(content->data);
        delete content;
    }
    content = nullptr;
    return 0;
}

int init(void *message) {
    content_of(message) = nullptr;
    return 0;
}

int init_size(void *message, size_t bytes) {
    if (allocations_left-- <= 0) {
        errno = ENOMEM;
        return -1;
    }
    content_of(message) = make_content(nullptr, bytes, false);
    return 0;
}

int copy(void *to, void *from) {
    close_message(to);
    content_of(to) = content_of(from);
    if (content_of(to)) content_of(to)->references++;
    return 0;
}

// libzmq's is never null.
void *data(void *message) { return content_of(message) ? content_of(message)->data : message; }
size_t size(const void *message) { return content_of(message) ? content_of(message)->size : 0; }
int more(const void *message) { return content_of(message) && content_of(message)->more; }
const char *gets(const void *, const char *) { return nullptr; }

bool interrupted() {
    if (chance->between(0, 15)) return false;
    errno = EINTR;
    return true;
}

int send(void *message, void *socket, int flags) {
    if (interrupted()) return -1;
    Socket &to = *static_cast<Socket *>(socket);
    if (!to.sends_left) {
        errno = EAGAIN;
        return -1;
    }
    if (!(flags & 2)) {
        to.sends_left--;
        to.sent++;
    }
    close_message(message);
    return 0;
}

int recv(void *message, void *socket, int flags) {
    if ((flags & 1) && interrupted()) return -1;
    Socket &from = *static_cast<Socket *>(socket);
    if (from.arriving.empty()) {
        errno = EAGAIN;
        return -1;
    }
    close_message(message);
    const Part &part = from.arriving.front();
    content_of(message) = make_content(part.bytes.data(), part.bytes.size(), part.more);
    from.arriving.pop_front();
    return 0;
}

const tpiedge::Zmq ZMQ{init, init_size, copy, data, size, more, gets, send, recv, close_message};

Bytes random_bytes(Random &random, size_t count) {
    Bytes made(count);
    for (char &one : made) one = static_cast<char>(random.bits());
    return made;
}

struct Peer {
    Bytes route;  // none: of a DEALER
    Bytes header;
    std::vector<float> values;
};

// What `peer` sends for the place, in parts.
std::vector<Part> message_of(const Peer &peer, const char *place, int64_t precision, int64_t rows, int64_t columns) {
    Bytes frame(HEADER_BYTES + static_cast<size_t>(tpiedge_wire_bytes(precision, rows, columns)));
    memcpy(frame.data(), peer.header.data(), HEADER_BYTES);
    memcpy(frame.data() + PLACE_AT, place, PLACE_BYTES);
    tpiedge_wire_encode(precision, rows, columns, peer.values.data(), frame.data() + HEADER_BYTES);
    std::vector<Part> parts;
    if (!peer.route.empty()) parts.push_back({peer.route, true});
    parts.push_back({frame, false});
    return parts;
}

void spoil(Random &random, std::vector<Part> &parts) {
    Part &part = parts[static_cast<size_t>(random.between(0, static_cast<int64_t>(parts.size()) - 1))];
    const int64_t size = static_cast<int64_t>(part.bytes.size());
    switch (random.between(0, 5)) {
        case 0: part.bytes.resize(static_cast<size_t>(random.between(0, size))); break;
        case 1: part.bytes.resize(static_cast<size_t>(size + random.between(1, 70))); break;
        case 2: part.bytes = random_bytes(random, static_cast<size_t>(random.between(0, 200))); break;
        case 3: part.bytes.clear(); break;
        case 4: part.more = !part.more; break;
        default:
            if (size) part.bytes[static_cast<size_t>(random.between(0, size - 1))] ^= 1 << random.between(0, 7);
    }
}

uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void look_at_all(Check &check, void *reducer) {
    uint64_t seen = 0;
    for (int64_t i = 0; i < tpiedge_reducer_received(reducer); i++) {
        View view;
        tpiedge_reducer_view(reducer, i, &view);
        for (int64_t at = 0; at < view.route_bytes; at++) seen += static_cast<const uint8_t *>(view.route)[at];
        for (int64_t at = 0; at < view.frame_bytes; at++) seen += static_cast<const uint8_t *>(view.frame)[at];
    }
    check.same_bytes(&seen, &seen, sizeof seen);
}

// One reducer in a few all-reduces; `hostile`: of some, a message is not what it should be, or memory or room is short.
void play(Check &check, Random &random, bool hostile) {
    const int64_t combine = random.between(0, 2), precision = random.between(0, 3);
    const int64_t rows = random.between(1, 4), columns = random.between(1, 70), count = rows * columns;
    const size_t peer_count = combine == 0 ? 1 : static_cast<size_t>(random.between(1, 4));
    const int64_t rank = combine == 2 ? 0 : random.between(0, static_cast<int64_t>(peer_count));
    const bool routed = combine == 2 || (combine == 1 && random.coin());
    check.shape(combine, precision, count, static_cast<int64_t>(peer_count));
    std::vector<Socket> sockets(routed ? 1 : peer_count);
    Floats sum(count), own(count);
    const Bytes header = random_bytes(random, HEADER_BYTES);
    const ReducePlan plan{combine, rank, precision, rows, columns, sum.data(), header.data(), PLACE_AT, PLACE_BYTES,
                          nullptr, 0};
    void *reducer = tpiedge_reducer_open(&ZMQ, &plan);
    std::vector<Peer> peers(peer_count);
    for (size_t i = 0; i < peer_count; i++) {
        Peer &peer = peers[i];
        if (routed) peer.route = random_bytes(random, 5 + i);
        peer.header = random_bytes(random, HEADER_BYTES);
        peer.values.resize(static_cast<size_t>(count));
        complete(!tpiedge_reducer_add_peer(reducer, &sockets[routed ? 0 : i], peer.route.data(),
                                           static_cast<int64_t>(peer.route.size()), peer.header.data()));
    }
    for (int round = 0; round < 4; round++) {
        const Bytes place = random_bytes(random, static_cast<size_t>(PLACE_BYTES));
        for (float &value : own) value = random.value();
        const std::vector<float> before(own.begin(), own.end());
        allocations_left = hostile && !random.between(0, 9) ? random.between(0, 3) : 1 << 20;
        for (Socket &socket : sockets) {
            socket.sends_left = hostile && !random.between(0, 9) ? static_cast<size_t>(random.between(0, 2)) : 1 << 20;
        }
        std::vector<double> wanted(before.begin(), before.end());
        std::vector<uint32_t> whole;  // where the same bits are integers, whose sums wrap around
        for (const float value : before) whole.push_back(bits_of(value));
        for (size_t i = 0; i < peer_count; i++) {
            for (float &value : peers[i].values) value = random.value();
            for (int64_t at = 0; at < count; at++) {
                const float part = peers[i].values[static_cast<size_t>(at)];
                double &number = wanted[static_cast<size_t>(at)];
                uint32_t &integer = whole[static_cast<size_t>(at)];
                number = combine == 0 ? part : number + part;
                integer = combine == 0 ? bits_of(part) : integer + bits_of(part);
            }
            std::vector<Part> parts = message_of(peers[i], place.data(), precision, rows, columns);
            const bool spoilt = hostile && random.coin();
            if (spoilt) spoil(random, parts);
            const int64_t times = hostile ? random.between(0, 3) : 1;
            for (int64_t at = 0; at < times; at++) {
                for (const Part &part : parts) sockets[routed ? 0 : i].arriving.push_back(part);
            }
        }
        const int outcome = tpiedge_reducer_run(reducer, place.data(), own.data());
        if (outcome >= 0) {
            if (!hostile || outcome > static_cast<int>(peer_count)) check.same(static_cast<float>(outcome), DONE);
            for (int64_t at = 0; at < count; at++) check.same(own[at], before[static_cast<size_t>(at)]);
        } else if (!hostile && precision == I32) {
            check.same_bytes(own.data(), whole.data(), count * static_cast<int64_t>(sizeof(float)));
        } else if (!hostile) {
            const double error = precision == 0 ? 1e-5 : precision == 1 ? 0.2 : 0.3;
            for (int64_t at = 0; at < count; at++) check.close(own[at], wanted[static_cast<size_t>(at)], error);
        }
        look_at_all(check, reducer);
        if (outcome != DONE && (outcome == DONE_AND_KEPT ? random.coin() : true)) tpiedge_reducer_release(reducer);
        if (hostile && random.coin()) {
            for (Socket &socket : sockets) socket.arriving.clear();
        }
    }
    tpiedge_reducer_close(reducer);
}

}  // namespace

void check_reducer() {
    Random random(10);
    chance = &random;
    if (tpiedge_transport_abi() < 1) exit(1);
    Check honest("reducer", "any"), hostile("reducer_hostile", "any");
    for (int i = 0; i < 200; i++) play(honest, random, false);
    for (int i = 0; i < 5000; i++) play(hostile, random, true);
    Floats values(6), back(6);
    Array<uint8_t> wire(tpiedge_wire_bytes(0, 2, 3));
    for (float &value : values) value = random.value();
    tpiedge_wire_encode(0, 2, 3, values.data(), wire.data());
    tpiedge_wire_decode(0, 2, 3, wire.data(), back.data());
    honest.same_bytes(back.data(), values.data(), 24);
}
