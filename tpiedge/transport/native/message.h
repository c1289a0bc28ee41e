// Messages of libzmq.
#ifndef TPIEDGE_MESSAGE_H
#define TPIEDGE_MESSAGE_H

#include <stddef.h>

namespace tpiedge {

// Functions of the libzmq in use, in the order of native_library.py.
struct Zmq {
    int (*init)(void *message);
    int (*init_size)(void *message, size_t bytes);
    int (*copy)(void *to, void *from);
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

    // Gives an empty message `bytes`; returns false, and leaves it empty, if memory is short.
    bool resize(size_t bytes);
    // Becomes another reference to the contents of `other`, which must not be written to any more.
    bool share(Message &other) { return zmq_->copy(raw_, other.raw_) == 0; }
    // Signals do not interrupt these: both parts of a message go through, or neither.
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

}  // namespace tpiedge

#endif
