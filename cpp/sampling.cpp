#include "sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "math.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace divine::sampling {
namespace {

using f32x4 = float __attribute__((vector_size(16)));
using u32x4 = std::uint32_t __attribute__((vector_size(16)));
using f64x2 = double __attribute__((vector_size(16)));
using u64x2 = std::uint64_t __attribute__((vector_size(16)));

constexpr std::size_t kGroup = 16;  // tokens handled together: four Philox blocks of four words
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kUnit = 0x1p40;     // the weight of the largest logit
constexpr float kNoWeight = -29.0f;  // a smaller z has weight 0
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// ---- exp and log --------------------------------------------------------------------------------

// round(2^40 exp(z)) for z <= 0; 0 below about -28.4. Taylor to degree 6 on |r| <= ln(2) / 2 is
// good to 2e-7: as good as float32 arguments deserve.
inline std::array<u64x2, 2> weights(f32x4 z) {
  constexpr float magic = 0x1.8p23f;  // adding it rounds to an integer in the low bits
  constexpr double wide_magic = 0x1p52;
  const f32x4 floor = f32x4{} - 30.0f;
  z = z > floor ? z : floor;
  const f32x4 t = z * 0x1.715476p+0f + magic;
  const f32x4 k = t - magic;
  const f32x4 r = (z - k * 0x1.63p-1f) - k * -0x1.bd0106p-13f;  // ln 2 in two parts
  f32x4 p = r * (1.0f / 720.0f) + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const f32x4 e = (f32x4)((u32x4)p + ((u32x4)t << 23));  // times 2^k
  const f64x2 low = f64x2{e[0], e[1]} * kUnit + wide_magic;
  const f64x2 high = f64x2{e[2], e[3]} * kUnit + wide_magic;
  constexpr auto zero = std::bit_cast<std::uint64_t>(wide_magic);
  return {(u64x2)low - zero, (u64x2)high - zero};
}

// ---- noise --------------------------------------------------------------------------------------

constexpr std::uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;
constexpr std::uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;

// The 64-bit products of the low halves of both lanes.
inline u64x2 multiply(u64x2 a, std::uint32_t m) {
#if defined(__SSE2__)
  return (u64x2)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(static_cast<long long>(m)));
#else
  return (a & 0xffffffffu) * m;
#endif
}

// Two Philox blocks, one in each 64-bit lane; the high halves of the words are left with rubbish.
struct TwoBlocks {
  u64x2 x0, x1, x2, x3;

  TwoBlocks(const NoiseSource& source, std::uint32_t first, std::uint32_t second)
      : x0{first, second},
        x1{source.position, source.position},
        x2{source.choice, source.choice},
        x3{0, 0} {}

  void round(std::uint32_t k0, std::uint32_t k1) {
    const u64x2 product0 = multiply(x0, kPhiloxM0), product1 = multiply(x2, kPhiloxM1);
    x0 = (product1 >> 32) ^ x1 ^ k0;
    x1 = product1;
    x2 = (product0 >> 32) ^ x3 ^ k1;
    x3 = product0;
  }
};

// Words of four consecutive Philox blocks: words[w][lane] belongs to token 4 (block + lane) + w.
// Two chains of two blocks, because one chain would wait for its own multiplications.
inline void philox(const NoiseSource& source, std::uint32_t block, std::array<u32x4, 4>& words) {
  TwoBlocks even(source, block, block + 2), odd(source, block + 1, block + 3);
  auto k0 = static_cast<std::uint32_t>(source.seed);
  auto k1 = static_cast<std::uint32_t>(source.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    even.round(k0, k1);
    odd.round(k0, k1);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  const auto join = [](u64x2 a, u64x2 b) { return (u32x4)((a & 0xffffffffu) | (b << 32)); };
  words = {join(even.x0, odd.x0), join(even.x1, odd.x1), join(even.x2, odd.x2),
           join(even.x3, odd.x3)};
}

double gumbel_of(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -natural_log(-natural_log(u));
}

// ---- order of tokens ----------------------------------------------------------------------------

// A key orders tokens by logit, then by lower id; larger is better. Filters keep the best few in
// this order, so each of them is one smallest key.
using Key = std::uint64_t;

Key key_of(float logit, std::size_t token) {
  auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // -0 and 0 are equal
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(bits) << 32 | (0xffffffffu - static_cast<std::uint32_t>(token));
}

std::int32_t token_of(Key key) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(key));
}

float logit_of(Key key) {
  const auto bits = static_cast<std::uint32_t>(key >> 32);
  return std::bit_cast<float>(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// ---- one row of logits --------------------------------------------------------------------------

struct Group {
  std::array<f32x4, 4> lanes;

  // The 16 logits from `start`; what lies beyond the end is -infinity.
  Group(const float* logits, std::size_t count, std::size_t start) {
    if (start + kGroup <= count) {
      std::memcpy(&lanes, logits + start, sizeof(lanes));
    } else {
      std::array<float, kGroup> padded;
      padded.fill(kMinusInfinity);
      std::memcpy(padded.data(), logits + start, (count - start) * sizeof(float));
      std::memcpy(&lanes, padded.data(), sizeof(lanes));
    }
  }

  float largest() const {
    const f32x4 a = lanes[0] > lanes[1] ? lanes[0] : lanes[1];
    const f32x4 b = lanes[2] > lanes[3] ? lanes[2] : lanes[3];
    const f32x4 c = a > b ? a : b;
    const float low = c[0] > c[1] ? c[0] : c[1];
    const float high = c[2] > c[3] ? c[2] : c[3];
    return low > high ? low : high;
  }
};

struct Row {
  const float* logits;
  std::size_t count;
  double inverse_temperature;
  float largest = kMinusInfinity;
  std::size_t best = 0;  // lowest id that has the largest logit

  Row(const float* logits_in, std::size_t count_in, double inverse)
      : logits(logits_in), count(count_in), inverse_temperature(inverse) {}

  // Finds the largest logit; false if any is NaN or +infinity, or none is finite.
  bool scan() {
    f32x4 most = f32x4{} + kMinusInfinity;
    u32x4 good = ~u32x4{};
    for (std::size_t start = 0; start < count; start += kGroup) {
      const Group group(logits, count, start);
      for (const f32x4& x : group.lanes) {
        most = x > most ? x : most;
        good &= (u32x4)(x <= std::numeric_limits<float>::max());  // false for NaN and +infinity
      }
    }
    for (int lane = 0; lane < 4; ++lane) {
      if (good[lane] == 0) return false;
      largest = most[lane] > largest ? most[lane] : largest;
    }
    if (largest == kMinusInfinity) return false;
    while (logits[best] != largest) ++best;
    return true;
  }

  double z(float logit) const {
    return (static_cast<double>(logit) - static_cast<double>(largest)) * inverse_temperature;
  }

  // z for weights, where float32 is enough; like z() it never falls when the logit grows.
  float rough_z(float logit) const {
    return (logit - largest) * static_cast<float>(inverse_temperature);
  }

  std::uint64_t weight(float logit) const { return weights(f32x4{} + rough_z(logit))[0][0]; }

  // Calls visit(rough z, weights) for four tokens at a time; weights of the tokens left out are 0.
  template <class Visit>
  void for_weights(Visit visit) const {
    const auto inverse = static_cast<float>(inverse_temperature);
    for (std::size_t start = 0; start < count; start += kGroup) {
      const Group group(logits, count, start);
      if (rough_z(group.largest()) < kNoWeight) continue;
      for (const f32x4& x : group.lanes) {
        const f32x4 z = (x - largest) * inverse;
        visit(z, weights(z));
      }
    }
  }

  std::uint64_t total_weight() const {
    u64x2 total = {};
    for_weights([&](f32x4, const std::array<u64x2, 2>& w) { total += w[0] + w[1]; });
    return total[0] + total[1];
  }

  // Keys of the k best tokens, as a heap whose front is the smallest.
  std::vector<Key> best_keys(std::size_t k) const {
    std::vector<Key> heap;
    heap.reserve(k);
    for (std::size_t start = 0; start < count; start += kGroup) {
      const std::size_t end = std::min(start + kGroup, count);
      // Later tokens with an equal logit lose to those in the heap.
      if (heap.size() == k && Group(logits, count, start).largest() <= logit_of(heap.front())) {
        continue;
      }
      for (std::size_t token = start; token < end; ++token) {
        const Key key = key_of(logits[token], token);
        if (heap.size() < k) {
          heap.push_back(key);
          std::push_heap(heap.begin(), heap.end(), std::greater<>());
        } else if (key > heap.front()) {
          std::pop_heap(heap.begin(), heap.end(), std::greater<>());
          heap.back() = key;
          std::push_heap(heap.begin(), heap.end(), std::greater<>());
        }
      }
    }
    return heap;
  }

  // The last key of the shortest run of best keys, from `keys`, whose weight reaches `target`.
  Key nucleus(std::vector<Key> keys, double target, std::uint64_t mass = 0) const {
    std::make_heap(keys.begin(), keys.end());
    while (true) {
      const Key key = keys.front();
      mass += weight(logit_of(key));
      std::pop_heap(keys.begin(), keys.end());
      keys.pop_back();
      if (keys.empty() || static_cast<double>(mass) >= target) return key;
    }
  }

  // The same among all tokens: sums by slice of z first, so that only one slice is put in order.
  Key nucleus_of_all(double top_p) const {
    constexpr float per_unit = 8.0f;
    constexpr std::size_t slices = 256;
    const auto slice_of = [](float z) {
      return z < kNoWeight ? slices - 1 : static_cast<std::size_t>(static_cast<int>(-z * per_unit));
    };
    std::array<std::uint64_t, slices> masses = {};
    for_weights([&](f32x4 z, const std::array<u64x2, 2>& w) {
      for (int lane = 0; lane < 4; ++lane) masses[slice_of(z[lane])] += w[lane / 2][lane % 2];
    });
    std::uint64_t total = 0, before = 0;
    for (const std::uint64_t mass : masses) total += mass;
    const double target = top_p * static_cast<double>(total);
    std::size_t slice = 0;
    while (static_cast<double>(before + masses[slice]) < target) before += masses[slice++];
    std::vector<Key> keys;
    for (std::size_t start = 0; start < count; start += kGroup) {
      if (slice_of(rough_z(Group(logits, count, start).largest())) > slice) continue;
      const std::size_t end = std::min(start + kGroup, count);
      for (std::size_t token = start; token < end; ++token) {
        if (slice_of(rough_z(logits[token])) == slice) keys.push_back(key_of(logits[token], token));
      }
    }
    return nucleus(std::move(keys), target, before);
  }

  // Top-k and top-p: the smallest key that both keep; 0 if neither is on.
  Key smallest_kept(const Filters& filters) const {
    const bool by_mass = filters.top_p < 1.0;
    if (filters.top_k <= 0 || static_cast<std::uint64_t>(filters.top_k) >= count) {
      return by_mass ? nucleus_of_all(filters.top_p) : 0;
    }
    std::vector<Key> keys = best_keys(static_cast<std::size_t>(filters.top_k));
    if (!by_mass) return keys.front();
    std::uint64_t total = 0;
    for (const Key key : keys) total += weight(logit_of(key));
    const double target = filters.top_p * static_cast<double>(total);
    return nucleus(std::move(keys), target);
  }

  // The perturbed argmax over tokens with key >= smallest and z >= least.
  std::int32_t perturbed_argmax(Key smallest, double least, const NoiseSource& source) const {
    // ln(2) (clz(~word) + 1) bounds the noise from above; the slack covers rounding in log.
    constexpr double inverse_ln2 = kLog2E, slack = 1e-6, most_bits = 33.0;
    std::size_t winner = best;
    double score = gumbel(source, static_cast<std::uint32_t>(best));
    const double floor = smallest == 0 ? least : std::max(least, z(logit_of(smallest)));
    for (std::size_t start = 0; start < count; start += kGroup) {
      const Group group(logits, count, start);
      const double group_z = z(group.largest());
      if (group_z < floor) continue;
      const double bits = (score - group_z) * inverse_ln2 - slack;
      if (bits > most_bits) continue;
      std::array<u32x4, 4> words;
      philox(source, static_cast<std::uint32_t>(start / 4), words);
      // A token can win only if the `leading` top bits of its word are all ones.
      const int leading = bits < 1.0 ? 0 : std::min(static_cast<int>(bits), 32);
      const std::uint32_t mask = leading == 0 ? 0u : ~0u << (32 - leading);
      u32x4 may_win = {};
      for (const u32x4& w : words) may_win |= (u32x4)((w & mask) == (u32x4{} + mask));
      if ((may_win[0] | may_win[1] | may_win[2] | may_win[3]) == 0) continue;
      const std::size_t end = std::min(start + kGroup, count);
      for (std::size_t token = start; token < end; ++token) {
        const std::uint32_t word = words[token % 4][(token - start) / 4];
        const double token_z = z(logits[token]);
        if ((word & mask) != mask || token_z < least) continue;
        if (key_of(logits[token], token) < smallest) continue;
        const double token_score = token_z + gumbel_of(word);
        if (token_score > score || (token_score == score && token < winner)) {
          score = token_score;
          winner = token;
        }
      }
    }
    return static_cast<std::int32_t>(winner);
  }
};

}  // namespace

double gumbel(const NoiseSource& source, std::uint32_t token) {
  std::array<u32x4, 4> words;
  philox(source, token / 4, words);
  return gumbel_of(words[token % 4][0]);
}

std::int32_t sample(const float* logits, std::size_t count, const Filters& filters,
                    const NoiseSource& source) {
  const bool greedy = filters.temperature == 0.0;
  Row row(logits, count, greedy ? 1.0 : 1.0 / filters.temperature);
  if (!row.scan()) return kNotFinite;
  if (greedy) return static_cast<std::int32_t>(row.best);
  const double least =
      filters.min_p > 0.0 ? natural_log(filters.min_p) : -std::numeric_limits<double>::infinity();
  return row.perturbed_argmax(row.smallest_kept(filters), least, source);
}

std::vector<TokenLogprob> log_probabilities(const float* logits, std::size_t count,
                                            std::int32_t chosen, std::size_t top) {
  Row row(logits, count, 1.0);
  if (!row.scan()) return {};
  const double log_total = natural_log(static_cast<double>(row.total_weight()) / kUnit);
  std::vector<TokenLogprob> out{{chosen, row.z(logits[chosen]) - log_total}};
  if (top == 0) return out;
  std::vector<Key> keys = row.best_keys(std::min(top, count));
  std::sort(keys.begin(), keys.end(), std::greater<>());
  for (const Key key : keys) out.push_back({token_of(key), row.z(logit_of(key)) - log_total});
  return out;
}

}  // namespace divine::sampling
