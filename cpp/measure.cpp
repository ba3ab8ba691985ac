#include "measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/repack.h"
#include "kernels/times_rows.h"
#include "os.h"
#include "threads.h"

namespace divine {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

}  // namespace

double read_bandwidth(const KernelTable& level, size_t bytes, int threads, int repeats) {
  constexpr size_t piece = size_t(1) << 16;
  bytes = std::max(bytes / piece, size_t(1)) * piece;
  auto* memory = static_cast<uint8_t*>(os::reserve(bytes));
  const int pieces = int(bytes / piece);
  Shares shares(threads);
  std::atomic<uint64_t> sink{0};
  const std::function<void(int)> fill = [&](int thread) {
    for (int p; (p = shares.next(thread, pieces)) >= 0;)
      std::memset(memory + size_t(p) * piece, p & 127, piece);
  };
  ThreadPool::instance().run(threads, fill);
  double best = 0.0;
  for (int i = 0; i < repeats; ++i) {
    shares.reset();
    const std::function<void(int)> read = [&](int thread) {
      uint64_t sum = 0;
      for (int p; (p = shares.next(thread, pieces)) >= 0;)
        sum += level.read(memory + size_t(p) * piece, piece);
      sink += sum;
    };
    const auto start = Clock::now();
    ThreadPool::instance().run(threads, read);
    best = std::max(best, double(bytes) / since(start));
  }
  os::release(memory, bytes);
  return best;
}

double in_cache_rate(const KernelTable& level, Format format, int threads, int rows,
                     double seconds) {
  constexpr int in = 1536,
                groups = 4;  // 55 KB of Q4_K: weights and rows fit the second-level cache
  const FormatInfo& fi = info(format);
  const size_t row_bytes = size_t(in / fi.block) * fi.block_bytes;
  const size_t group_bytes = size_t(in / fi.block) * unit_bytes(format);
  const std::vector<uint8_t> raw = random_blocks(format, kLanes * groups, in, 1);
  std::atomic<int64_t> products{0};
  const auto start = Clock::now();
  const std::function<void(int)> job = [&](int) {
    std::vector<uint8_t> weights(groups * group_bytes + 64);
    for (int g = 0; g < groups; ++g) {
      const uint8_t* sources[kLanes];
      for (int i = 0; i < kLanes; ++i) sources[i] = raw.data() + size_t(g * kLanes + i) * row_bytes;
      repack_group(format, sources, in, weights.data() + size_t(g) * group_bytes);
    }
    std::vector<float> x(size_t(in) * kManyRows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(int(i * 37 % 101)) - 50.0f;
    std::vector<int8_t> q(x.size());
    std::vector<float> scale(x.size() / 32), sum32(x.size() / 32), sum16(x.size() / 16);
    std::vector<int32_t> pairs32(x.size() / 32), pairs16(x.size() / 16);
    level.quantize(x.data(), 0, int(x.size()), q.data(), scale.data(), sum32.data(), sum16.data(),
                   pairs32.data(), pairs16.data());
    Activation a[kManyRows];
    for (int r = 0; r < kManyRows; ++r)
      a[r] = {x.data() + r * in,           q.data() + r * in,          scale.data() + r * in / 32,
              sum32.data() + r * in / 32,  sum16.data() + r * in / 16, pairs32.data() + r * in / 32,
              pairs16.data() + r * in / 16};
    const auto fetch = [](int) -> Prefetch { return {nullptr, 0, false}; };
    const auto store = [](int, const float*) {};
    int64_t done = 0;
    while (since(start) < seconds) {
      for (int i = 0; i < 16; ++i)
        for (int g = 0; g < groups; ++g)
          times_rows(level, format, weights.data() + size_t(g) * group_bytes, in / fi.block, a,
                     rows, fetch, store);
      done += int64_t(16) * groups * kLanes * in * rows;
    }
    products += done;
  };
  ThreadPool::instance().run(threads, job);
  return double(products) / since(start);
}

}  // namespace divine
