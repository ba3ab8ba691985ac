// Choosing a token: filters and shared noise on one row of logits.
//
// Every number here comes from +, -, *, / on doubles, integer arithmetic and fixed polynomials (no
// libm, no fused operations), so that the same logits, settings and seed give the same token on
// every machine. Knows nothing of models, penalties or sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace divine::sampling {

// What identifies one stream of noise; a drafter that uses the same source sees the same noise.
struct NoiseSource {
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;    // index among several answers to one prompt
  std::uint32_t position = 0;  // of the chosen token in its sequence
};

struct Filters {
  double temperature = 1.0;  // 0: the largest logit, whatever else is set
  std::int64_t top_k = 0;    // <= 0: off
  double top_p = 1.0;        // >= 1: off; 0 keeps one token
  double min_p = 0.0;        // 0: off
};

struct TokenLogprob {
  std::int32_t token;
  double logprob;
};

struct TokenScore {
  std::int32_t token;
  double score;
};

constexpr std::int32_t kNotFinite = -1;  // NaN or +infinity among the logits, or nothing finite

// Gumbel noise of one token: -log(-log(u)), u = (word + 1/2) / 2^32, where word is number token % 4
// of Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011) with counter (token / 4, position, choice, 0)
// and key (seed's low half, seed's high half).
double gumbel(const NoiseSource& source, std::uint32_t token);

// argmax over the kept tokens of (logit - largest logit) / temperature + gumbel; lowest id on ties.
// Filters apply in the order top-k, top-p (on what top-k kept), min-p. Probabilities are summed as
// integers in units of 2^-40 of the largest, so that no order of summation can matter.
std::int32_t sample(const float* logits, std::size_t count, const Filters& filters,
                    const NoiseSource& source);

// The k best of the tokens among which sample() chooses, in its order, its choice first; fewer if
// fewer have a finite logit. A score is (logit - largest logit) / temperature + gumbel, or at
// temperature 0 logit - largest logit. Empty if the logits are not finite (as for kNotFinite).
std::vector<TokenScore> rank(const float* logits, std::size_t count, const Filters& filters,
                             const NoiseSource& source, std::size_t k);

// The probabilities with which sample() chooses, over all noise, to out [count]: in units of 2^-40
// of the largest, so 0 where filtered and where smaller than that. False if the logits are not
// finite.
bool distribution(const float* logits, std::size_t count, const Filters& filters, double* out);

// Log-softmax at temperature 1: of `chosen`, then of the `top` most probable tokens (descending,
// lowest id first on ties). Empty if the logits are not finite (as for kNotFinite).
std::vector<TokenLogprob> log_probabilities(const float* logits, std::size_t count,
                                            std::int32_t chosen, std::size_t top);

}  // namespace divine::sampling
