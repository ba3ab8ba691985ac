// The one thread pool of the process, and how a pass divides its work.
//
// A job runs on `threads` threads at once, the caller being number 0. Between jobs the workers spin
// for a moment, then sleep, so an idle process uses no processor time. Inside a job, units of work
// are handed out by output (never by summation range), so results do not depend on who did what.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace divine {

constexpr int kMaxThreads = 256;

class ThreadPool {
 public:
  // A forked child gets a pool of its own, since threads do not survive a fork.
  static ThreadPool& instance();

  // Calls job(thread, threads) on each thread and returns when all are done. One job at a time;
  // concurrent callers wait. A job must not throw.
  void run(int threads, const std::function<void(int)>& job);

 private:
  ThreadPool() = default;
  void work(int index);
  void grow(int workers);

  std::mutex one_job_;
  std::mutex sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  std::atomic<uint64_t> ticket_{0};  // job number << 16 | threads: read as one, so none runs twice
  std::atomic<int> running_{0};
  const std::function<void(int)>* job_ = nullptr;
};

// All threads of a job meet here; reusable. The last to arrive may do something for all of them.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  template <class Work>
  void wait(const Work& work) {
    const unsigned generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      work();
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
    } else {
      wait_for_others(generation);
    }
  }

 private:
  void wait_for_others(unsigned generation) const;

  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};  // alone: those who wait read it all the time
};

// Hands out units 0 .. n-1: each thread walks its own contiguous share, then helps the others, so
// that memory streams stay long and unequal cores (or a busy machine) do not hold the rest up.
class Shares {
 public:
  explicit Shares(int threads);
  // Begins anew; no thread may be taking units meanwhile.
  void reset();
  // The next unit for this thread, or -1.
  int next(int thread, int units);

 private:
  struct alignas(64) Counter {
    std::atomic<int> taken{0};
  };
  int threads_;
  std::vector<Counter> counters_;  // [thread]
};

}  // namespace divine
