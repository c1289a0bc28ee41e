// Implements switch.h.
#ifdef __linux__

#include "switch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <new>

namespace tpiedge {

namespace {

constexpr size_t SLOTS = 16384;
// Read from one port before the others have their turn.
constexpr int FRAMES_PER_TURN = 64;
constexpr int64_t MIN_LONG_WAIT_NS = 20000;
constexpr int64_t MAX_LEAD_NS = 200000;
// What this computer itself takes from one socket to the other, waking up included, is part of the way: measured
// between 36 and 56 us. Without it a round trip over 1 ms each way took 2.15 ms.
constexpr int64_t HOST_NS = 45000;
// How long after a frame the processors are kept from deep sleep.
constexpr int64_t ALERT_NS = 500'000'000;
constexpr int32_t ANY_LATENCY_US = 2'000'000'000;  // the kernel's PM_QOS_CPU_LATENCY_DEFAULT_VALUE

int64_t clock_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

// As exact as this thread may be: what it does between two sleeps takes microseconds, and should not wait for the work
// of those whose network it is. Where that is not allowed, it is less exact.
void be_punctual() {
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    sched_param param{};
    param.sched_priority = sched_get_priority_min(SCHED_FIFO);
    if (sched_setscheduler(0, SCHED_FIFO, &param) != 0) {
        setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), -20);
    }
}

}  // namespace

Alertness::Alertness() : fd_(open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC)) {}

Alertness::~Alertness() {
    if (fd_ >= 0) close(fd_);
}

void Alertness::renew(int64_t now_ns) {
    if (fd_ < 0) return;
    if (until_ns_ == DelayQueue::NEVER) request(0);
    until_ns_ = now_ns + ALERT_NS;
}

void Alertness::relax(int64_t now_ns) {
    if (now_ns < until_ns_) return;
    request(ANY_LATENCY_US);
    until_ns_ = DelayQueue::NEVER;
}

void Alertness::request(int32_t latency_us) {
    const bool taken = write(fd_, &latency_us, sizeof latency_us) == sizeof latency_us;
    (void)taken;  // without it the testbed is less exact, and counts how late it was
}

Pool::Pool(size_t slots) : slots_(slots) {
    // Memory is taken by those pages only that a frame has touched.
    void *memory = mmap(nullptr, slots * SLOT_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<unsigned char *>(memory);
    for (size_t slot = slots; slot > 0; --slot) free_.push_back(static_cast<uint32_t>(slot - 1));
}

Pool::~Pool() { munmap(memory_, slots_ * SLOT_BYTES); }

Switch::Switch(const std::vector<LinkSettings> &links, const std::vector<PortSettings> &ports, const int32_t *paths,
               uint64_t seed)
    : ports_(ports), paths_(ports.size() * ports.size()), pool_(SLOTS), packets_(SLOTS), hops_(SLOTS),
      deliveries_(SLOTS), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    for (size_t index = 0; index < links.size(); ++index) {
        links_.emplace_back(links[index], link_seed(seed, index));
        link_counters_.push_back(std::make_unique<LinkCounters>());
    }
    for (Path &path : paths_) {
        const int32_t count = *paths++;
        path.exists = count >= 0;
        for (int32_t i = 0; i < count; ++i) path.links.push_back(static_cast<uint32_t>(*paths++));
    }
    for (const PortSettings &port : ports_) polled_.push_back({port.tap, POLLIN, 0});
    polled_.push_back({wake_fd_, POLLIN, 0});
    find_least_rest();
}

Switch::~Switch() {
    if (wake_fd_ >= 0) close(wake_fd_);
}

int Switch::run() {
    be_punctual();
    while (!stopping_.load(std::memory_order_acquire)) {
        now_ns_ = clock_ns();
        alertness_.relax(now_ns_);
        advance();
        if (const int error = wait(std::min(wake_ns(), alertness_.until_ns())); error != 0) return error;
        if (polled_.back().revents != 0) apply_changes();
        for (size_t source = 0; source < ports_.size(); ++source) {
            if (polled_[source].revents != 0) receive(source);
        }
    }
    return 0;
}

void Switch::stop() {
    stopping_.store(true, std::memory_order_release);
    eventfd_write(wake_fd_, 1);
}

bool Switch::change(size_t link, const LinkSettings &settings, int64_t timeout_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    changes_.emplace_back(link, settings);
    eventfd_write(wake_fd_, 1);
    return applied_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return changes_.empty(); });
}

void Switch::apply_changes() {
    eventfd_t count;
    eventfd_read(wake_fd_, &count);
    std::lock_guard<std::mutex> lock(mutex_);
    now_ns_ = clock_ns();
    for (const auto &[link, settings] : changes_) links_[link].change(settings, now_ns_);
    changes_.clear();
    find_least_rest();
    hurry();
    applied_.notify_all();
}

// Over all links whose past matters, but those at the start of a path.
void Switch::find_least_rest() {
    int64_t least_ns = DelayQueue::NEVER;
    for (const Path &path : paths_) {
        int64_t rest_ns = 0;
        for (size_t hop = path.links.size(); hop-- > 1;) {
            const Link &link = links_[path.links[hop]];
            rest_ns += link.settings().latency_ns;
            if (!link.is_plain()) least_ns = std::min(least_ns, rest_ns);
        }
    }
    least_rest_ns_ = least_ns == DelayQueue::NEVER ? 0 : least_ns;
}

// After a change: what is under way takes no longer than its links, as they are now, can explain. Otherwise all that comes
// later would wait behind it, as nothing overtakes.
void Switch::hurry() {
    const std::vector<double> pace = paces();
    const auto move = [&](int64_t &when_ns, size_t path) {
        if (when_ns <= now_ns_ || pace[path] >= 1) return;
        when_ns = now_ns_ + static_cast<int64_t>(static_cast<double>(when_ns - now_ns_) * pace[path]);
    };
    deliveries_.reschedule([&](int64_t &when_ns, uint32_t slot) { move(when_ns, packets_[slot].path); });
    hops_.reschedule([&](int64_t &when_ns, uint32_t slot) {
        Packet &packet = packets_[slot];
        move(packet.burst.head_ns, packet.path);
        move(packet.burst.tail_ns, packet.path);
        when_ns = packet.burst.head_ns;
    });
    for (size_t path = 0; path < paths_.size(); ++path) move(paths_[path].last_ns, path);
}

// Of each path, by how much what is still to come of the times on it must shrink: the same for all keeps their order.
std::vector<double> Switch::paces() {
    std::vector<double> pace(paths_.size(), 1);
    std::vector<int64_t> last_ns(paths_.size());
    for (size_t path = 0; path < paths_.size(); ++path) last_ns[path] = paths_[path].last_ns;
    hops_.reschedule([&](int64_t, uint32_t slot) {
        int64_t &last = last_ns[packets_[slot].path];
        last = std::max(last, packets_[slot].burst.tail_ns);
    });
    for (size_t path = 0; path < paths_.size(); ++path) {
        int64_t most_ns = 0;
        for (const uint32_t link : paths_[path].links) most_ns += links_[link].most_ns(now_ns_);
        const int64_t rest_ns = last_ns[path] - now_ns_;
        if (rest_ns > most_ns) pace[path] = static_cast<double>(most_ns) / static_cast<double>(rest_ns);
    }
    return pace;
}

int64_t Switch::wake_ns() const {
    const int64_t hop_ns = hops_.empty() ? DelayQueue::NEVER : hops_.next_ns() + least_rest_ns_;
    return std::min(deliveries_.next_ns(), hop_ns);
}

// `revents` of each descriptor are set. May return early.
int Switch::wait(int64_t until_ns) {
    const int64_t from_ns = clock_ns();
    int64_t wait_ns = std::max<int64_t>(0, until_ns - from_ns);
    const bool is_long = until_ns != DelayQueue::NEVER && wait_ns > 2 * lead_ns_ + MIN_LONG_WAIT_NS;
    if (is_long) wait_ns -= lead_ns_;
    const timespec timeout{wait_ns / SECOND_NS, wait_ns % SECOND_NS};
    const int ready = ppoll(polled_.data(), polled_.size(), until_ns == DelayQueue::NEVER ? nullptr : &timeout, nullptr);
    if (ready == 0 && is_long) {
        const int64_t overshoot_ns = std::min(clock_ns() - from_ns - wait_ns, MAX_LEAD_NS);
        lead_ns_ += (overshoot_ns + overshoot_ns / 4 - lead_ns_) / 8;
    }
    if (ready >= 0) return 0;
    for (pollfd &polled : polled_) polled.revents = 0;
    return errno == EINTR ? 0 : errno;
}

// All that is due by now.
void Switch::advance() {
    while (hops_.next_ns() <= now_ns_) travel(hops_.pop());
    while (deliveries_.next_ns() <= now_ns_) {
        const int64_t late_ns = now_ns_ - deliveries_.next_ns();
        deliver(deliveries_.pop(), late_ns);
    }
}

void Switch::receive(size_t source) {
    for (int turn = 0; turn < FRAMES_PER_TURN; ++turn) {
        const bool is_crowded = pool_.empty();
        unsigned char start[VNET_BYTES + ETHERNET_BYTES];  // as much of a frame as the kernel insists on, and more
        const ssize_t size = is_crowded ? read(ports_[source].tap, start, sizeof start)
                                        : read(ports_[source].tap, pool_.frame(pool_.top()), Pool::SLOT_BYTES);
        if (size < 0) {
            // The device is gone, with its namespace: the descriptor would be ready for ever.
            if (errno != EAGAIN && errno != EINTR && (polled_[source].revents & POLLERR)) polled_[source].fd = -1;
            return;
        }
        if (is_crowded) {
            totals_.crowded_out.add(1);
            continue;
        }
        const uint32_t slot = pool_.top();
        pool_.take_top();
        now_ns_ = clock_ns();
        alertness_.renew(now_ns_);
        advance();
        enter(source, slot, static_cast<size_t>(size));
    }
}

void Switch::enter(size_t source, uint32_t slot, size_t size) {
    Packet &packet = packets_[slot];
    uint32_t address = 0;
    size_t target = ports_.size();
    totals_.received.add(1);
    if (read_frame(pool_.frame(slot), size, address, packet.burst)) {
        for (target = 0; target < ports_.size() && ports_[target].address != address;) ++target;
    }
    packet.path = static_cast<uint32_t>(source * ports_.size() + target);
    if (target == ports_.size() || !paths_[packet.path].exists) {
        totals_.foreign.add(1);
        pool_.give(slot);
        return;
    }
    readdress(pool_.frame(slot), ports_[target].mac);
    packet.frame_bytes = static_cast<uint32_t>(size);
    packet.burst.head_ns = packet.burst.tail_ns = now_ns_ - HOST_NS;
    packet.hop = 0;
    travel(slot);
}

// As far as can be told by now.
void Switch::travel(uint32_t slot) {
    Packet &packet = packets_[slot];
    Path &path = paths_[packet.path];
    for (; packet.hop < path.links.size(); ++packet.hop) {
        const uint32_t index = path.links[packet.hop];
        Link &link = links_[index];
        if (packet.burst.head_ns > now_ns_ && !link.is_plain()) {
            hops_.push(packet.burst.head_ns, slot);
            return;
        }
        LinkCounters &counters = *link_counters_[index];
        const Fate fate = link.pass(packet.burst);
        if (fate != Fate::PASSED) {
            (fate == Fate::LOST ? counters.lost : counters.dropped).add(packet.burst.packets);
            pool_.give(slot);
            return;
        }
        counters.packets.add(packet.burst.packets);
        counters.bytes.add(packet.burst.bytes);
    }
    path.last_ns = std::max(path.last_ns, packet.burst.tail_ns);
    deliveries_.push(path.last_ns, slot);
}

void Switch::deliver(uint32_t slot, int64_t late_ns) {
    const Packet &packet = packets_[slot];
    const int tap = ports_[packet.path % ports_.size()].tap;
    const bool taken = write(tap, pool_.frame(slot), packet.frame_bytes) >= 0;
    (taken ? totals_.delivered : totals_.undelivered).add(1);
    totals_.late_ns.add(late_ns);
    totals_.latest_ns.raise(late_ns);
    pool_.give(slot);
}

}  // namespace tpiedge

#endif
