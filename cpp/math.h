// Sine, cosine and logarithm in double precision, the same bits on every machine: plain operations
// in a fixed order, no libm.
#pragma once
#include <bit>
#include <cstdint>

namespace divine {

// sin and cos of x >= 0 up to some 10^8: reduction by pi/2 in three parts (Cody and Waite 1980),
// then Taylor polynomials on |r| <= pi/4; absolute error below 1e-13.
inline void sine_cosine(double x, double* sine, double* cosine) {
  const double quarter =
      static_cast<double>(static_cast<int64_t>(x * 0.63661977236758134308 + 0.5));
  double r = x - quarter * 1.57079632673412561417;  // the first 33 bits of pi / 2
  r = r - quarter * 6.07710050630396597660e-11;     // the next 33
  r = r - quarter * 2.02226624879595063154e-21;     // the rest
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;  // -1 / 15!
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = s * z * r + r;
  double c = 1.0 / 20922789888000.0;  // 1 / 16!
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 0.5;
  c = c * z + 1.0;
  switch (static_cast<int64_t>(quarter) & 3) {
    case 0:
      *sine = s, *cosine = c;
      break;
    case 1:
      *sine = c, *cosine = -s;
      break;
    case 2:
      *sine = -s, *cosine = -c;
      break;
    default:
      *sine = -c, *cosine = s;
      break;
  }
}

constexpr double kLn2High =
    0x1.62e42fee00000p-1;  // 32 leading bits: products with small k are exact
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;

// log x for positive normal x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then the series of
// 2 atanh((m - 1) / (m + 1)); exact in relative terms near 1, which the noise's upper end needs.
inline double natural_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1022;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffULL) | 0x3fe0000000000000ULL);
  if (m < kSqrtHalf) {
    m = m * 2.0;
    exponent -= 1;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double s2 = s * s;
  double series = 1.0 / 21.0;
  for (int odd = 19; odd >= 1; odd -= 2) series = series * s2 + 1.0 / odd;
  const auto e = static_cast<double>(exponent);
  return e * kLn2High + (2.0 * s * series + e * kLn2Low);
}

}  // namespace divine
