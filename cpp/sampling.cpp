#include "sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "math.h"
#include "sampling_math.h"

namespace divine::sampling {
namespace {

constexpr std::size_t kGroup = 16;  // tokens handled together: four Philox blocks of four words
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

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

// The perturbed order; the lower id wins a tie.
bool better(const TokenScore& a, const TokenScore& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

double least_z(const Filters& filters) {
  return filters.min_p > 0.0 ? natural_log(filters.min_p)
                             : -std::numeric_limits<double>::infinity();
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

  // Writes the weights of the tokens with key >= smallest and z >= least, which are not 0, to out
  // [count]; returns their sum.
  std::uint64_t kept_weights(Key smallest, double least, double* out) const {
    const auto inverse = static_cast<float>(inverse_temperature);
    std::uint64_t total = 0;
    for (std::size_t start = 0; start < count; start += kGroup) {
      const Group group(logits, count, start);
      if (rough_z(group.largest()) < kNoWeight) continue;
      for (std::size_t four = 0; four < kGroup; four += 4) {
        const auto w = weights((group.lanes[four / 4] - largest) * inverse);
        for (std::size_t lane = 0; lane < 4; ++lane) {
          const std::size_t token = start + four + lane;
          const std::uint64_t mine = w[lane / 2][lane % 2];  // 0 beyond the end
          if (mine == 0 || z(logits[token]) < least || key_of(logits[token], token) < smallest) {
            continue;
          }
          out[token] = static_cast<double>(mine);
          total += mine;
        }
      }
    }
    return total;
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

  // The k best in the perturbed order of the tokens with key >= smallest and z >= least, as a heap
  // whose front is the last of them.
  std::vector<TokenScore> perturbed_best(std::size_t k, Key smallest, double least,
                                         const NoiseSource& source) const {
    // ln(2) (clz(~word) + 1) bounds the noise from above; the slack covers rounding in log.
    constexpr double inverse_ln2 = kLog2E, slack = 1e-6, most_bits = 33.0;
    least = std::max(least, std::numeric_limits<double>::lowest());  // never minus infinity
    std::vector<TokenScore> heap;
    double worst = -std::numeric_limits<double>::infinity();  // to be beaten once the heap is full
    const auto add = [&](const TokenScore& entry) {
      if (heap.size() == k) {
        if (!better(entry, heap.front())) return;
        std::pop_heap(heap.begin(), heap.end(), better);
        heap.pop_back();
      }
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end(), better);
      if (heap.size() == k) worst = heap.front().score;
    };
    // The likeliest tokens come first: with good scores to beat, few others need their noise.
    const std::vector<std::int32_t> likeliest = likeliest_tokens(k);
    for (const std::int32_t token : likeliest) {
      const float logit = logits[token];
      if (z(logit) < least || key_of(logit, static_cast<std::size_t>(token)) < smallest) {
        continue;
      }
      add({token, z(logit) + gumbel(source, static_cast<std::uint32_t>(token))});
    }
    const double floor = smallest == 0 ? least : std::max(least, z(logit_of(smallest)));
    for (std::size_t start = 0; start < count; start += kGroup) {
      const Group group(logits, count, start);
      const double group_z = z(group.largest());
      if (group_z < floor) continue;
      const double bits = (worst - group_z) * inverse_ln2 - slack;
      if (bits > most_bits) continue;
      std::array<u32x4, 4> words;
      philox(source, static_cast<std::uint32_t>(start / 4), words);
      // A token can get in only if the `leading` top bits of its word are all ones.
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
        const auto id = static_cast<std::int32_t>(token);
        if (key_of(logits[token], token) < smallest) continue;
        if (std::binary_search(likeliest.begin(), likeliest.end(), id)) continue;
        add({id, token_z + gumbel_of(word)});
      }
    }
    return heap;
  }

  // Ids of the k largest logits, ascending.
  std::vector<std::int32_t> likeliest_tokens(std::size_t k) const {
    if (k == 1) return {static_cast<std::int32_t>(best)};
    std::vector<std::int32_t> tokens;
    for (const Key key : best_keys(k)) tokens.push_back(token_of(key));
    std::sort(tokens.begin(), tokens.end());
    return tokens;
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
  const auto winner = row.perturbed_best(1, row.smallest_kept(filters), least_z(filters), source);
  return winner.front().token;
}

std::vector<TokenScore> rank(const float* logits, std::size_t count, const Filters& filters,
                             const NoiseSource& source, std::size_t k) {
  const bool greedy = filters.temperature == 0.0;
  Row row(logits, count, greedy ? 1.0 : 1.0 / filters.temperature);
  if (!row.scan()) return {};
  k = std::min(k, count);
  if (!greedy) {
    auto out = row.perturbed_best(k, row.smallest_kept(filters), least_z(filters), source);
    std::sort(out.begin(), out.end(), better);
    return out;
  }
  std::vector<TokenScore> out;
  std::vector<Key> keys = row.best_keys(k);
  std::sort(keys.begin(), keys.end(), std::greater<>());
  for (const Key key : keys) {
    if (logit_of(key) != kMinusInfinity) out.push_back({token_of(key), row.z(logit_of(key))});
  }
  return out;
}

bool distribution(const float* logits, std::size_t count, const Filters& filters, double* out) {
  const bool greedy = filters.temperature == 0.0;
  Row row(logits, count, greedy ? 1.0 : 1.0 / filters.temperature);
  if (!row.scan()) return false;
  std::fill(out, out + count, 0.0);
  if (greedy) {
    out[row.best] = 1.0;
    return true;
  }
  const std::uint64_t total = row.kept_weights(row.smallest_kept(filters), least_z(filters), out);
  for (std::size_t token = 0; token < count; ++token) out[token] /= static_cast<double>(total);
  return true;
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
