// Implements message.h.
#include "message.h"

#include <errno.h>

namespace tpiedge {

namespace {

constexpr int DONT_WAIT = 1;  // ZMQ_DONTWAIT
constexpr int MORE = 2;       // ZMQ_SNDMORE

// Repeats a call, which never waits, while signals interrupt it. Python's handlers run after the native call.
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
    // Closing the message that libzmq leaves then would follow a null pointer.
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

}  // namespace tpiedge
