// Implements pool.h.
#include "pool.h"

#include <chrono>

namespace tpiedge {

namespace {

// Long enough to bridge the gap between two products of a block, short enough not to take a core from others.
constexpr std::chrono::microseconds SPIN{50};

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + SPIN;
    do {
        for (int i = 0; i < 32; i++) {
            if (condition()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

}  // namespace

Pool::Pool(int threads) {
    try {
        for (int i = 1; i < threads; i++) threads_.emplace_back([this] { serve(); });
    } catch (...) {
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        wake_.notify_all();
    }
    for (auto &thread : threads_) thread.join();
}

bool Pool::take_one() {
    int64_t left = left_.load();
    do {
        if (left == 0) return false;
    } while (!left_.compare_exchange_weak(left, left - 1));
    const int64_t pieces = pieces_;
    work_(context_, pieces - left);
    // From the last count on the job may be replaced: only locals and the flag are read below.
    if (done_.fetch_add(1) + 1 == pieces && caller_sleeps_) {
        const std::lock_guard<std::mutex> lock(mutex_);
        finished_.notify_one();
    }
    return true;
}

void Pool::run(Work work, const void *context, int64_t pieces) {
    if (threads_.empty() || pieces <= 1) {
        for (int64_t piece = 0; piece < pieces; piece++) work(context, piece);
        return;
    }
    const std::lock_guard<std::mutex> one_caller(caller_);
    work_ = work;
    context_ = context;
    pieces_ = pieces;
    done_ = 0;
    left_ = pieces;
    // Either a thread that is about to sleep sees left_, or this sees the sleeper and wakes it.
    if (sleepers_ > 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    while (take_one()) {
    }
    const auto finished = [&] { return done_ == pieces; };
    if (spin_until(finished)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    caller_sleeps_ = true;
    finished_.wait(lock, finished);
    caller_sleeps_ = false;
}

void Pool::serve() {
    const auto called = [&] { return left_ > 0 || stopping_; };
    while (!stopping_) {
        if (!spin_until(called)) {
            std::unique_lock<std::mutex> lock(mutex_);
            sleepers_++;
            wake_.wait(lock, called);
            sleepers_--;
        }
        while (take_one()) {
        }
    }
}

}  // namespace tpiedge
