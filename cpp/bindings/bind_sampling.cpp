// Python's view of sampling: checks at the border, no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "../sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check(const Logits& logits) {
  if (logits.size() == 0 || logits.size() > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("logits must hold between 1 and 2^31 - 1 values");
  }
  if (reinterpret_cast<std::uintptr_t>(logits.data()) % alignof(float) != 0) {
    throw std::invalid_argument("logits must be aligned to 4 bytes");
  }
}

divine::sampling::Filters filters(double temperature, std::int64_t top_k, double top_p,
                                  double min_p) {
  // Outside these its inverse is no normal float, and weights become NaN.
  if (!(temperature >= 0.0) || (temperature > 0.0 && temperature < 1e-30) || temperature > 1e30) {
    throw std::invalid_argument("temperature must be 0 or between 1e-30 and 1e30");
  }
  if (!(top_p >= 0.0) || !(min_p >= 0.0) || !(min_p <= 1.0)) {
    throw std::invalid_argument("top_p and min_p must be between 0 and 1");
  }
  if (min_p > 0.0 && min_p < 1e-300) min_p = 0.0;
  return {temperature, top_k, top_p, min_p};
}

std::int32_t sample(const Logits& logits, double temperature, std::int64_t top_k, double top_p,
                    double min_p, std::uint64_t seed, std::uint32_t choice,
                    std::uint32_t position) {
  check(logits);
  return divine::sampling::sample(logits.data(), logits.size(),
                                  filters(temperature, top_k, top_p, min_p),
                                  {seed, choice, position});
}

nb::list rank(const Logits& logits, double temperature, std::int64_t top_k, double top_p,
              double min_p, std::uint64_t seed, std::uint32_t choice, std::uint32_t position,
              std::uint32_t k) {
  check(logits);
  if (k == 0) throw std::invalid_argument("k must be at least 1");
  nb::list out;
  for (const auto& entry : divine::sampling::rank(logits.data(), logits.size(),
                                                  filters(temperature, top_k, top_p, min_p),
                                                  {seed, choice, position}, k)) {
    out.append(nb::make_tuple(entry.token, entry.score));
  }
  return out;
}

nb::object distribution(const Logits& logits, double temperature, std::int64_t top_k, double top_p,
                        double min_p) {
  check(logits);
  const auto kept = filters(temperature, top_k, top_p, min_p);
  auto* values = new double[logits.size()];
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<double*>(p); });
  if (!divine::sampling::distribution(logits.data(), logits.size(), kept, values)) {
    return nb::none();
  }
  return nb::ndarray<nb::numpy, double, nb::ndim<1>>(values, {logits.size()}, owner).cast();
}

nb::object gumbel(std::uint64_t seed, std::uint32_t choice, std::uint32_t position,
                  const Tokens& tokens) {
  auto* values = new double[tokens.size()];
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<double*>(p); });
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    values[i] = divine::sampling::gumbel({seed, choice, position},
                                         static_cast<std::uint32_t>(tokens.data()[i]));
  }
  return nb::ndarray<nb::numpy, double, nb::ndim<1>>(values, {tokens.size()}, owner).cast();
}

nb::list log_probabilities(const Logits& logits, std::int32_t chosen, std::uint32_t top) {
  check(logits);
  if (chosen < 0 || static_cast<std::size_t>(chosen) >= logits.size()) {
    throw std::invalid_argument("chosen must be the index of a logit");
  }
  nb::list out;
  for (const auto& entry :
       divine::sampling::log_probabilities(logits.data(), logits.size(), chosen, top)) {
    out.append(nb::make_tuple(entry.token, entry.logprob));
  }
  return out;
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample", &sample, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
        "seed"_a, "choice"_a, "position"_a,
        "Choose a token from float32 logits [vocabulary]: top-k, top-p, min-p, then the argmax of\n"
        "logit / temperature plus the noise of (seed, choice, position). -1 if a logit is NaN or\n"
        "+infinity, or none is finite.");
  m.def("rank", &rank, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
        "seed"_a, "choice"_a, "position"_a, "k"_a,
        nb::sig("def rank(logits: object, temperature: float, top_k: int, top_p: float, min_p: "
                "float, seed: int, choice: int, position: int, k: int) -> list[tuple[int, float]]"),
        "[(token, score)] of the k best tokens in the order in which sample() would choose them;\n"
        "empty where it returns -1.");
  m.def("distribution", &distribution, "logits"_a.noconvert(), "temperature"_a, "top_k"_a,
        "top_p"_a, "min_p"_a,
        nb::sig("def distribution(logits: object, temperature: float, top_k: int, top_p: float, "
                "min_p: float) -> NDArray[numpy.float64] | None"),
        "The probabilities with which sample() chooses, float64 [vocabulary]; None where it\n"
        "returns -1.");
  m.def("gumbel", &gumbel, "seed"_a, "choice"_a, "position"_a, "tokens"_a.noconvert(),
        "The noise of each token id, float64 [n].");
  m.def("log_probabilities", &log_probabilities, "logits"_a.noconvert(), "chosen"_a, "top"_a,
        nb::sig("def log_probabilities(logits: object, chosen: int, top: int) -> list[tuple[int, "
                "float]]"),
        "[(token, log-softmax)] of the chosen token, then of the `top` most probable; empty where\n"
        "sample() returns -1.");
}
