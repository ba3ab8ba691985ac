// Sine, cosine and logarithm in double precision, the same bits on every machine: plain operations in
// a fixed order, no libm.
#pragma once
#include <cstdint>
#include <cstring>

namespace divine {

// sin and cos of x >= 0 up to some 10^8: reduction by pi/2 in three parts (Cody and Waite 1980), then
// Taylor polynomials on |r| <= pi/4; absolute error below 1e-13.
inline void sine_cosine(double x, double* sine, double* cosine) {
  const double quarter = static_cast<double>(static_cast<int64_t>(x * 0.63661977236758134308 + 0.5));
  double r = x - quarter * 1.57079632673412561417;   // the first 33 bits of pi / 2
  r = r - quarter * 6.07710050630396597660e-11;      // the next 33
  r = r - quarter * 2.02226624879595063154e-21;      // the rest
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
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
  }
}

// log(x) for x > 0 and normal; NaN and infinity as they are, 0 gives -infinity. x = 2^e m with m in
// [sqrt(1/2), sqrt(2)), then the series of 2 artanh((m - 1) / (m + 1)); relative error below 1e-15.
inline double natural_log(double x) {
  if (!(x > 0.0) || x > 1.7e308) return x == 0.0 ? -__builtin_inf() : x > 0.0 ? x : __builtin_nan("");
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  int64_t e = int64_t(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m;
  std::memcpy(&m, &bits, 8);
  if (m > 1.41421356237309504880) m = m * 0.5, e = e + 1;
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 21.0;
  for (int k = 19; k >= 3; k -= 2) p = p * z + 1.0 / double(k);
  const double f = static_cast<double>(e);
  return f * 0.693147180369123816490 + (f * 1.90821492927058770002e-10 + (2.0 * s + 2.0 * s * z * p));
}

}  // namespace divine
