// The switch: takes frames from TAP devices and hands each to another one when it has passed its links. Linux.
//
// One thread runs it and sleeps in ppoll until a frame comes or one is due. Any thread may stop it, change a link or read
// the counters meanwhile.
//
// A link whose past matters (rate, jitter) must see packets in the order in which they reach it, and paths of unlike
// latency meet: a packet waits in `hops_` until its head has reached such a link. It is not woken up for: nothing leaves
// the switch earlier than `least_rest_ns_` after that, so what was reached until then is passed in one go.
#ifndef TPIEDGE_SWITCH_H
#define TPIEDGE_SWITCH_H

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "delay_queue.h"
#include "frame.h"
#include "link.h"

namespace tpiedge {

struct PortSettings {  // as in switch/library.py
    int32_t tap;       // not blocking; whoever made the switch closes it
    uint32_t address;  // in network order
    unsigned char mac[8];
};

// Read from any thread while the switch runs; only its own thread writes.
struct Counter {
    std::atomic<int64_t> value{0};
    void add(int64_t more) { value.store(get() + more, std::memory_order_relaxed); }
    void raise(int64_t to) {
        if (to > get()) value.store(to, std::memory_order_relaxed);
    }
    int64_t get() const { return value.load(std::memory_order_relaxed); }
};

struct LinkCounters {
    Counter packets, bytes, dropped, lost;
};

// In frames, of which one may stand for many packets. Late: how long after its time a frame was handed over.
struct Totals {
    Counter received, delivered, foreign, crowded_out, undelivered, late_ns, latest_ns;
};

// The frames in the switch. The one freed last is used first: it is in the cache.
class Pool {
public:
    explicit Pool(size_t slots);  // throws std::bad_alloc
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    bool empty() const { return free_.empty(); }
    uint32_t top() const { return free_.back(); }
    void take_top() { free_.pop_back(); }
    void give(uint32_t slot) { free_.push_back(slot); }
    unsigned char *frame(uint32_t slot) { return memory_ + slot * SLOT_BYTES; }

    static constexpr size_t SLOT_BYTES = (MAX_FRAME_BYTES + 4095) / 4096 * 4096;

private:
    size_t slots_;
    unsigned char *memory_;
    std::vector<uint32_t> free_;
};

// Keeps the processors from sleeping deeply while frames come: an idle one, above all of a virtual machine, wakes up so late
// that a round trip of 2 ms took 2.14 to 2.24 ms; alert, 1.99 to 2.04. Nothing where that is not allowed.
class Alertness {
public:
    Alertness();
    ~Alertness();
    Alertness(const Alertness &) = delete;
    Alertness &operator=(const Alertness &) = delete;

    void renew(int64_t now_ns);
    void relax(int64_t now_ns);  // when it is time
    int64_t until_ns() const { return until_ns_; }

private:
    void request(int32_t latency_us);

    int fd_;
    int64_t until_ns_ = DelayQueue::NEVER;
};

class Switch {
public:
    // `paths`: of each pair of source and target, source by source, the count of links and then their indices; a count
    // of -1 where there is no path.
    Switch(const std::vector<LinkSettings> &links, const std::vector<PortSettings> &ports, const int32_t *paths,
           uint64_t seed);
    ~Switch();
    Switch(const Switch &) = delete;
    Switch &operator=(const Switch &) = delete;

    bool is_open() const { return wake_fd_ >= 0; }
    // Until `stop`; an errno, or 0.
    int run();
    void stop();
    // Returns when it is in force, or false after `timeout_ms`: the switch does not run, and it will be in force later.
    bool change(size_t link, const LinkSettings &settings, int64_t timeout_ms);

    const LinkCounters &counters(size_t link) const { return *link_counters_[link]; }
    const Totals &totals() const { return totals_; }

private:
    struct Path {
        std::vector<uint32_t> links;
        bool exists = false;
        int64_t last_ns = 0;  // nothing overtakes on a path
    };
    struct Packet {
        Burst burst;
        uint32_t frame_bytes;
        uint32_t path;
        uint32_t hop;
    };

    int wait(int64_t until_ns);
    int64_t wake_ns() const;
    void advance();
    void deliver(uint32_t slot, int64_t late_ns);
    void receive(size_t source);
    void enter(size_t source, uint32_t slot, size_t size);
    void travel(uint32_t slot);
    void apply_changes();
    void find_least_rest();
    void hurry();
    std::vector<double> paces();

    std::vector<Link> links_;
    std::vector<PortSettings> ports_;
    std::vector<Path> paths_;
    Alertness alertness_;
    std::vector<pollfd> polled_;  // of each port, then wake_fd_

    Pool pool_;
    std::vector<Packet> packets_;  // by slot
    DelayQueue hops_;
    DelayQueue deliveries_;
    int64_t now_ns_ = 0;
    int64_t least_rest_ns_ = 0;
    int64_t lead_ns_ = 0;  // a long sleep ends so much before its time, as it tends to end late; a short one does the rest

    std::vector<std::unique_ptr<LinkCounters>> link_counters_;
    Totals totals_;

    int wake_fd_;
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable applied_;
    std::vector<std::pair<size_t, LinkSettings>> changes_;  // under the mutex
};

}  // namespace tpiedge

#endif
