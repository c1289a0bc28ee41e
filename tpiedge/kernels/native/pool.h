// A few threads that compute the pieces of one job together with the thread that brings it.
#ifndef TPIEDGE_POOL_H
#define TPIEDGE_POOL_H

#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace tpiedge {

class Pool {
public:
    using Work = void (*)(const void *context, int64_t piece);

    // Starts `threads` - 1 threads. Throws std::system_error where the system refuses one.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const { return static_cast<int>(threads_.size()) + 1; }
    // Calls work(context, 0 ... pieces - 1), each once, in any order and on any thread; returns when all have returned.
    void run(Work work, const void *context, int64_t pieces);

private:
    void serve();
    bool take_one();
    void stop();

    // The job. Written only while left_ is 0; it stays unchanged until every piece that a thread took is counted in done_,
    // because run() waits for that: so no thread ever needs to be waited for that has not taken a piece.
    Work work_ = nullptr;
    const void *context_ = nullptr;
    int64_t pieces_ = 0;
    std::atomic<int64_t> left_{0};
    std::atomic<int64_t> done_{0};

    std::mutex caller_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable finished_;
    std::atomic<int> sleepers_{0};
    std::atomic<bool> caller_sleeps_{false};
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> threads_;
};

}  // namespace tpiedge

#endif
