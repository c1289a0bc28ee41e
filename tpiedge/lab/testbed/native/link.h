// One direction of a link: rate, queue, loss, latency and jitter. The same arithmetic as tests/shaped_links.py, to the
// nanosecond; change both. No clock, no descriptor.
#ifndef TPIEDGE_LINK_H
#define TPIEDGE_LINK_H

#include <stdint.h>

#include <algorithm>

namespace tpiedge {

constexpr int64_t SECOND_NS = 1000000000;
constexpr int64_t PACKET_BYTES = 1500;  // a common one

// splitmix64.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
        return mixed ^ (mixed >> 31);
    }

    // In [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    uint64_t state_;
};

struct LinkSettings {  // as in switch/library.py
    int64_t latency_ns;
    int64_t jitter_ns;
    double loss;
    double bytes_per_s;  // 0: no limit
    int64_t queue_bytes;
};

// Packets that one sender sent back to back, as one frame. They are taken as evenly spread between the times at which the
// first and the last of them is complete, which on a slow link differ. A single packet: the two are equal.
struct Burst {
    int64_t head_ns;
    int64_t tail_ns;
    int64_t bytes;
    int64_t packets;
    int64_t first_bytes;
    int64_t last_bytes;
};

enum class Fate { PASSED, DROPPED, LOST };

class Link {
public:
    Link(const LinkSettings &settings, uint64_t seed) : settings_(settings), random_(seed) {}

    const LinkSettings &settings() const { return settings_; }
    // What waits is as many bytes as before, and nothing is held back longer than the new settings can explain.
    void change(const LinkSettings &settings, int64_t now_ns) {
        if (free_ns_ > now_ns) {
            const bool limited = settings_.bytes_per_s > 0 && settings.bytes_per_s > 0;
            const auto waiting_ns = static_cast<double>(free_ns_ - now_ns);
            const double scaled_ns = limited ? waiting_ns * settings_.bytes_per_s / settings.bytes_per_s : 0;
            free_ns_ = now_ns + static_cast<int64_t>(scaled_ns + 0.5);
        }
        settings_ = settings;
        order_ns_ = std::min(order_ns_, std::max(free_ns_, now_ns) + settings.latency_ns + settings.jitter_ns);
    }

    // How long what is on this link by now may still take.
    int64_t most_ns(int64_t now_ns) const {
        const int64_t packet_ns = settings_.bytes_per_s > 0 ? duration_ns(PACKET_BYTES) : 0;
        return std::max<int64_t>(0, free_ns_ - now_ns) + packet_ns + settings_.latency_ns + settings_.jitter_ns;
    }

    // Whether what passes has no effect on what passes later.
    bool is_plain() const { return settings_.bytes_per_s <= 0 && settings_.jitter_ns <= 0; }

    // Moves the burst to the other end. Where the link is not plain, bursts must come in the order of their heads.
    Fate pass(Burst &burst) {
        if (settings_.bytes_per_s > 0 && !serialise(burst)) return Fate::DROPPED;
        if (settings_.loss > 0 && random_.uniform() < settings_.loss) return Fate::LOST;
        int64_t delay_ns = settings_.latency_ns;
        if (settings_.jitter_ns > 0) {
            delay_ns += static_cast<int64_t>(random_.uniform() * static_cast<double>(settings_.jitter_ns));
        }
        burst.head_ns += delay_ns;
        burst.tail_ns += delay_ns;
        if (!is_plain()) keep_order(burst);
        return Fate::PASSED;
    }

private:
    int64_t duration_ns(int64_t bytes) const {
        return static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / settings_.bytes_per_s + 0.5);
    }

    // False where the queue is full. An idle link takes everything.
    bool serialise(Burst &burst) {
        const int64_t waiting_ns = free_ns_ - burst.head_ns;
        if (waiting_ns > 0) {
            const double waiting_bytes = static_cast<double>(waiting_ns) * settings_.bytes_per_s / 1e9;
            if (waiting_bytes + static_cast<double>(burst.bytes) > static_cast<double>(settings_.queue_bytes)) {
                return false;
            }
        }
        const int64_t start_ns = std::max(free_ns_, burst.head_ns);
        // Only the work counts: in the gaps of a burst that arrives slowly the link serves others.
        free_ns_ = start_ns + duration_ns(burst.bytes);
        burst.head_ns = start_ns + duration_ns(burst.first_bytes);
        burst.tail_ns = std::max(free_ns_, burst.tail_ns + duration_ns(burst.last_bytes));
        return true;
    }

    void keep_order(Burst &burst) {
        order_ns_ = burst.head_ns = std::max(order_ns_, burst.head_ns);
        burst.tail_ns = std::max(burst.tail_ns, burst.head_ns);
    }

    LinkSettings settings_;
    Random random_;
    int64_t free_ns_ = 0;   // when all that was accepted has left
    int64_t order_ns_ = 0;  // the last arrival
};

// Of the link `index`, from the seed of all.
inline uint64_t link_seed(uint64_t seed, uint64_t index) { return Random(Random(seed).next() + index).next(); }

}  // namespace tpiedge

#endif
