// The arithmetic of sampling, four lanes at a time: integer weights of logits, and the noise.
//
// Plain operations in a fixed order, no libm: the same bits on every machine.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "math.h"
#include "sampling.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace divine::sampling {

using f32x4 = float __attribute__((vector_size(16)));
using u32x4 = std::uint32_t __attribute__((vector_size(16)));
using f64x2 = double __attribute__((vector_size(16)));
using u64x2 = std::uint64_t __attribute__((vector_size(16)));

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kUnit = 0x1p40;     // the weight of the largest logit
constexpr float kNoWeight = -29.0f;  // a smaller z has weight 0

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

inline double gumbel_of(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -natural_log(-natural_log(u));
}

}  // namespace divine::sampling
