// A queue of events by due time, first in first out at the same time.
#ifndef TPIEDGE_DELAY_QUEUE_H
#define TPIEDGE_DELAY_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace tpiedge {

class DelayQueue {
public:
    static constexpr int64_t NEVER = std::numeric_limits<int64_t>::max();

    explicit DelayQueue(size_t capacity) { heap_.reserve(capacity); }

    bool empty() const { return heap_.empty(); }
    int64_t next_ns() const { return heap_.empty() ? NEVER : heap_.front().when_ns; }

    void push(int64_t when_ns, uint32_t item) {
        heap_.push_back({when_ns, count_++, item});
        std::push_heap(heap_.begin(), heap_.end(), later);
    }

    // Of a queue that is not empty.
    uint32_t pop() {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const uint32_t item = heap_.back().item;
        heap_.pop_back();
        return item;
    }

    // `visit(when_ns, item)` may change the time. Of the same time stays first what was.
    template <typename Visit>
    void reschedule(Visit visit) {
        for (Entry &entry : heap_) visit(entry.when_ns, entry.item);
        std::make_heap(heap_.begin(), heap_.end(), later);
    }

private:
    struct Entry {
        int64_t when_ns;
        uint64_t number;
        uint32_t item;
    };

    static bool later(const Entry &one, const Entry &other) {
        return one.when_ns != other.when_ns ? one.when_ns > other.when_ns : one.number > other.number;
    }

    std::vector<Entry> heap_;
    uint64_t count_ = 0;
};

}  // namespace tpiedge

#endif
