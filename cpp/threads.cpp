#include "threads.h"

#include <chrono>

#include "os.h"

namespace divine {
namespace {

constexpr int kSpins =
    1 << 14;  // with pause: some hundred microseconds, longer than the caller's gap

// Spins until done() or the spins run out; yields now and then in case cores are shared.
template <class Done>
bool spin(const Done& done, int spins) {
  for (int i = 0; spins < 0 || i < spins; ++i) {
    if (done()) return true;
    os::relax();
    if ((i & 1023) == 1023) os::yield();
  }
  return false;
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  static std::mutex lock;
  static ThreadPool* pool = nullptr;  // never destroyed: its threads may outlive static objects
  static long owner = 0;
  const std::lock_guard guard(lock);
  if (pool == nullptr || owner != os::process()) {
    pool = new ThreadPool();
    owner = os::process();
  }
  return *pool;
}

void ThreadPool::grow(int workers) {
  while (int(workers_.size()) < workers) {
    const int index = int(workers_.size()) + 1;
    workers_.emplace_back([this, index] { work(index); });
    workers_.back().detach();
  }
}

void ThreadPool::work(int index) {
  uint64_t seen = 0;
  for (;;) {
    const auto changed = [&] { return ticket_.load(std::memory_order_acquire) != seen; };
    if (!spin(changed, kSpins)) {
      std::unique_lock lock(sleep_);
      wake_.wait(lock, changed);
    }
    seen = ticket_.load(std::memory_order_acquire);
    if (index < int(seen & 0xffff)) {
      {
        const os::FloatMode mode;
        (*job_)(index);
      }
      running_.fetch_sub(1, std::memory_order_release);
    }
  }
}

void ThreadPool::run(int threads, const std::function<void(int)>& job) {
  const std::lock_guard one(one_job_);
  const os::FloatMode mode;
  if (threads > 1) {
    grow(threads - 1);
    {
      const std::lock_guard lock(sleep_);
      job_ = &job;
      running_.store(threads - 1, std::memory_order_relaxed);
      const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 16) + 1;
      ticket_.store(number << 16 | uint64_t(threads), std::memory_order_release);
    }
    wake_.notify_all();
  }
  job(0);
  if (threads > 1) spin([&] { return running_.load(std::memory_order_acquire) == 0; }, -1);
}

void Barrier::wait_for_others(unsigned generation) const {
  spin([&] { return generation_.load(std::memory_order_acquire) != generation; }, -1);
}

Shares::Shares(int threads) : threads_(threads), counters_(size_t(threads)) {}

void Shares::reset() {
  for (auto& c : counters_) c.taken.store(0, std::memory_order_relaxed);
}

int Shares::next(int thread, int units) {
  for (int i = 0; i < threads_; ++i) {
    const int owner = (thread + i) % threads_;
    const int begin = int(int64_t(units) * owner / threads_);
    const int end = int(int64_t(units) * (owner + 1) / threads_);
    std::atomic<int>& taken = counters_[size_t(owner)].taken;
    if (begin + taken.load(std::memory_order_relaxed) >= end) continue;
    const int unit = begin + taken.fetch_add(1, std::memory_order_relaxed);
    if (unit < end) return unit;
  }
  return -1;
}

}  // namespace divine
