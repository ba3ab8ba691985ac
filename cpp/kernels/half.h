// IEEE half precision in plain C++, round to nearest even; equal to F16C bit for bit.
#pragma once
#include <cstdint>
#include <cstring>

namespace divine {

static inline float bits_to_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
static inline uint32_t float_to_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  if (exponent == 31)  // infinity, or NaN made quiet
    return bits_to_float(sign | 0x7f800000 | (mantissa << 13) | (mantissa ? 0x400000 : 0));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact
    const float value = float(mantissa) * 5.9604644775390625e-08f;
    return bits_to_float(float_to_bits(value) | sign);
  }
  return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline uint16_t float_to_half(float f) {
  const uint32_t bits = float_to_bits(f);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | uint16_t((magnitude >> 13) & 0x3ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal
    if (magnitude < 0x33000000) return sign;          // below 2^-25
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t shift = 126 - exponent;  // 14 .. 24
    const uint32_t half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1);
    uint32_t value = mantissa >> shift;
    if (rest > half || (rest == half && (value & 1))) ++value;
    return sign | uint16_t(value);
  }
  const uint32_t rest = magnitude & 0x1fff;
  uint32_t value = (magnitude - 0x38000000) >> 13;
  if (rest > 0x1000 || (rest == 0x1000 && (value & 1))) ++value;
  return sign | uint16_t(value);
}

}  // namespace divine
