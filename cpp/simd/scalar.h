// The SIMD vocabulary in plain C++: the specification that every other level equals bit for bit.
// All vectors have 16 virtual lanes, one lane per output row of a matrix (or per key, or per
// channel), whatever the real width. A level file defines the same names in its own namespace.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../kernels/half.h"

namespace divine::DIVINE_LEVEL {

struct F {  // 16 x float32
  float v[16];
};
struct I {  // 16 x int32
  int32_t v[16];
};
struct B {  // 16 outputs x 4 consecutive k, bytes
  uint8_t v[64];
};
struct X {  // 16 bytes: one per output
  uint8_t v[16];
};
struct A {  // 4 consecutive activations, the same for all outputs
  int8_t v[4];
};
using Acc = I;  // sums of products before the scale; 16 bits wide where that is exact
using S = I;    // integer scale per output

#define DIVINE_LANES for (int i = 0; i < 16; ++i)

inline F fset(float x) {
  F r;
  DIVINE_LANES r.v[i] = x;
  return r;
}
inline F fload(const float* p) {
  F r;
  std::memcpy(r.v, p, 64);
  return r;
}
inline void fstore(float* p, F a) { std::memcpy(p, a.v, 64); }
inline F fadd(F a, F b) {
  DIVINE_LANES a.v[i] = a.v[i] + b.v[i];
  return a;
}
inline F fsub(F a, F b) {
  DIVINE_LANES a.v[i] = a.v[i] - b.v[i];
  return a;
}
inline F fmul(F a, F b) {
  DIVINE_LANES a.v[i] = a.v[i] * b.v[i];
  return a;
}
inline F fdiv(F a, F b) {
  DIVINE_LANES a.v[i] = a.v[i] / b.v[i];
  return a;
}
inline F ffma(F a, F b, F c) {  // a * b + c, rounded once
  DIVINE_LANES a.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return a;
}
inline F fnma(F a, F b, F c) {  // c - a * b, rounded once
  DIVINE_LANES a.v[i] = std::fma(-a.v[i], b.v[i], c.v[i]);
  return a;
}
inline F fmax2(F a, F b) {  // b where either is NaN, as x86 does
  DIVINE_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline F fload_f16(const uint16_t* p) {
  F r;
  DIVINE_LANES r.v[i] = half_to_float(p[i]);
  return r;
}
inline F fload_bf16(const uint16_t* p) {
  F r;
  DIVINE_LANES {
    uint32_t bits = uint32_t(p[i]) << 16;
    std::memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
inline F fset_f16(const uint16_t* p) { return fset(half_to_float(*p)); }
inline void fstore_f16(uint16_t* p, F a) { DIVINE_LANES p[i] = float_to_half(a.v[i]); }
inline F ffirst(F a, int count, float rest) {  // lanes >= count become rest
  DIVINE_LANES if (i >= count) a.v[i] = rest;
  return a;
}
inline I iset(int32_t x) {
  I r;
  DIVINE_LANES r.v[i] = x;
  return r;
}
inline I iadd(I a, I b) {
  DIVINE_LANES a.v[i] = int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i]));
  return a;
}
inline I imax(I a, I b) {
  DIVINE_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline I imin(I a, I b) {
  DIVINE_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline I iand(I a, I b) {
  DIVINE_LANES a.v[i] = a.v[i] & b.v[i];
  return a;
}
inline int32_t imost(I a) {  // the largest lane
  int32_t most = a.v[0];
  DIVINE_LANES most = a.v[i] > most ? a.v[i] : most;
  return most;
}
// Sums of the lanes with i % 4 in {0, 1} and in {2, 3}: of a, then of b.
inline void ipair_sums(I a, I b, int32_t* out) {
  for (int j = 0; j < 4; ++j) out[j] = 0;
  DIVINE_LANES out[i / 2 % 2] += a.v[i], out[2 + i / 2 % 2] += b.v[i];
}
inline I ishl23(I a) {
  DIVINE_LANES a.v[i] = int32_t(uint32_t(a.v[i]) << 23);
  return a;
}
inline F itof(I a) {
  F r;
  DIVINE_LANES r.v[i] = float(a.v[i]);
  return r;
}
inline I ftoi(F a) {  // nearest even; what does not fit becomes INT32_MIN, as x86 does
  I r;
  DIVINE_LANES r.v[i] =
      std::fabs(a.v[i]) < 2147483648.0f ? int32_t(std::nearbyint(a.v[i])) : INT32_MIN;
  return r;
}
inline I fbits(F a) {
  I r;
  std::memcpy(r.v, a.v, 64);
  return r;
}
inline F ffrombits(I a) {
  F r;
  std::memcpy(r.v, a.v, 64);
  return r;
}
inline void istore_i8(int8_t* p, I a) { DIVINE_LANES p[i] = int8_t(a.v[i]); }
inline I iload_i8(const int8_t* p) {
  I r;
  DIVINE_LANES r.v[i] = p[i];
  return r;
}
inline void istore(int32_t* p, I a) { std::memcpy(p, a.v, 64); }

inline X xload(const uint8_t* p) {
  X r;
  std::memcpy(r.v, p, 16);
  return r;
}
template <int N>
inline X xshr(X a) {
  DIVINE_LANES a.v[i] = uint8_t(a.v[i] >> N);
  return a;
}
template <int N>
inline X xshl(X a) {
  DIVINE_LANES a.v[i] = uint8_t(a.v[i] << N);
  return a;
}
inline X xand(X a, int mask) {
  DIVINE_LANES a.v[i] = a.v[i] & uint8_t(mask);
  return a;
}
inline X xor_(X a, X b) {
  DIVINE_LANES a.v[i] = a.v[i] | b.v[i];
  return a;
}
inline X xsub(X a, int n) {
  DIVINE_LANES a.v[i] = uint8_t(a.v[i] - n);
  return a;
}
inline I xwiden_i8(X a) {
  I r;
  DIVINE_LANES r.v[i] = int8_t(a.v[i]);
  return r;
}
inline I xwiden_u8(X a) {
  I r;
  DIVINE_LANES r.v[i] = a.v[i];
  return r;
}
inline S sscale(X a) { return xwiden_i8(a); }  // signed; unsigned scales stay below 128
inline S sone() { return iset(1); }

inline B bload(const uint8_t* p) {
  B r;
  std::memcpy(r.v, p, 64);
  return r;
}
inline void bstore(uint8_t* p, B x) { std::memcpy(p, x.v, 64); }
template <int N>
inline B bshift_and(B a, int mask) {  // N > 0: right, N < 0: left; inside each byte by the mask
  for (int i = 0; i < 64; ++i)
    a.v[i] = uint8_t((N >= 0 ? a.v[i] >> (N >= 0 ? N : 0) : a.v[i] << (N < 0 ? -N : 0)) & mask);
  return a;
}
inline B bor(B a, B b) {
  for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i];
  return a;
}
inline B blookup(const int8_t* table, B codes) {  // codes 0..15
  for (int i = 0; i < 64; ++i) codes.v[i] = uint8_t(table[codes.v[i]]);
  return codes;
}
inline A abcast(const int8_t* p) {
  A r;
  std::memcpy(r.v, p, 4);
  return r;
}
inline Acc azero() { return iset(0); }
// Starts a sum at -offset * (sum of the activations it will cover); pairs holds the negated sums of
// k % 4 in {0, 1} and {2, 3} as two int16.
template <int OFFSET>
inline Acc aoffset(const int32_t* pairs) {
  return iset((int16_t(*pairs & 0xffff) + int16_t(*pairs >> 16)) * OFFSET);
}
inline Acc adot(Acc acc, B codes, A a) {  // unsigned codes
  DIVINE_LANES for (int k = 0; k < 4; ++k) acc.v[i] += int32_t(codes.v[4 * i + k]) * a.v[k];
  return acc;
}
inline I awiden(Acc acc, S scale) {
  DIVINE_LANES acc.v[i] *= scale.v[i];
  return acc;
}
struct SignedCodes {
  B w;
};
inline SignedCodes bsigned(B w) { return {w}; }
inline I idot(I acc, const SignedCodes& w, A a) {
  DIVINE_LANES for (int k = 0; k < 4; ++k) acc.v[i] += int32_t(int8_t(w.w.v[4 * i + k])) * a.v[k];
  return acc;
}
inline void prefetch(const uint8_t*) {}
inline void prefetch_far(const uint8_t*) {}
#undef DIVINE_LANES

}  // namespace divine::DIVINE_LEVEL
