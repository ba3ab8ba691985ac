// The SIMD vocabulary on AVX-512 (F, BW, VL, DQ) with VNNI: one register is 16 lanes.
// Meanings: scalar.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "bytes16.h"

namespace divine::DIVINE_LEVEL {

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct B {
  __m512i v;
};
using A = __m512i;
using Acc = I;
using S = I;

inline F fset(float x) { return {_mm512_set1_ps(x)}; }
inline F fload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void fstore(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline F fadd(F x, F y) { return {_mm512_add_ps(x.v, y.v)}; }
inline F fsub(F x, F y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline F fmul(F x, F y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline F fdiv(F x, F y) { return {_mm512_div_ps(x.v, y.v)}; }
inline F ffma(F x, F y, F z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
inline F fnma(F x, F y, F z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }
inline F fmax2(F x, F y) { return {_mm512_max_ps(x.v, y.v)}; }
inline F fload_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F fload_bf16(const uint16_t* p) {
  const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
inline F fset_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_set1_epi16(short(*p)))}; }
inline void fstore_f16(uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F ffirst(F x, int count, float rest) {
  const __mmask16 m = count >= 16 ? 0xffff : count <= 0 ? 0 : __mmask16((1u << count) - 1);
  return {_mm512_mask_blend_ps(m, _mm512_set1_ps(rest), x.v)};
}
inline I iset(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I iadd(I x, I y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline I imax(I x, I y) { return {_mm512_max_epi32(x.v, y.v)}; }
inline I imin(I x, I y) { return {_mm512_min_epi32(x.v, y.v)}; }
inline I iand(I x, I y) { return {_mm512_and_si512(x.v, y.v)}; }
inline int32_t imost(I x) { return _mm512_reduce_max_epi32(x.v); }
inline void ipair_sums(I x, I y, int32_t* out) {
  const __m256i s =
      _mm256_add_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti64x4_epi64(x.v, 1));
  const __m256i t =
      _mm256_add_epi32(_mm512_castsi512_si256(y.v), _mm512_extracti64x4_epi64(y.v, 1));
  const __m128i u = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  const __m128i v = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_hadd_epi32(u, v));
}
inline I ishl23(I x) { return {_mm512_slli_epi32(x.v, 23)}; }
inline F itof(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline I ftoi(F x) { return {_mm512_cvtps_epi32(x.v)}; }
inline I fbits(F x) { return {_mm512_castps_si512(x.v)}; }
inline F ffrombits(I x) { return {_mm512_castsi512_ps(x.v)}; }
inline void istore_i8(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
inline I iload_i8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void istore(int32_t* p, I x) { _mm512_storeu_si512(p, x.v); }

inline I xwiden_i8(X x) { return {_mm512_cvtepi8_epi32(x.v)}; }
inline I xwiden_u8(X x) { return {_mm512_cvtepu8_epi32(x.v)}; }
inline S sscale(X x) { return xwiden_i8(x); }
inline S sone() { return iset(1); }

inline B bload(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void bstore(uint8_t* p, B x) { _mm512_storeu_si512(p, x.v); }
template <int N>
inline B bshift_and(B x, int mask) {
  if constexpr (N > 0) {
    x = {_mm512_srli_epi16(x.v, N)};
  } else if constexpr (N < 0) {
    x = {_mm512_slli_epi16(x.v, -N)};
  }
  return {_mm512_and_si512(x.v, _mm512_set1_epi8(char(mask)))};
}
inline B bor(B x, B y) { return {_mm512_or_si512(x.v, y.v)}; }
inline B blookup(const int8_t* table, B codes) {
  const __m512i t =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm512_shuffle_epi8(t, codes.v)};
}
inline A abcast(const int8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
inline Acc azero() { return {_mm512_setzero_si512()}; }
template <int OFFSET>
inline Acc aoffset(const int32_t* pairs) {
  return iset((int16_t(*pairs & 0xffff) + int16_t(*pairs >> 16)) * OFFSET);
}
inline Acc adot(Acc acc, B w, A a) { return {_mm512_dpbusd_epi32(acc.v, w.v, a)}; }
inline I awiden(Acc acc, S s) { return {_mm512_mullo_epi32(acc.v, s.v)}; }
struct SignedCodes {
  __m512i magnitude;
  __mmask64 negative;
};
inline SignedCodes bsigned(B w) { return {_mm512_abs_epi8(w.v), _mm512_movepi8_mask(w.v)}; }
inline I idot(I acc, const SignedCodes& w, A a) {
  const __m512i s = _mm512_mask_sub_epi8(a, w.negative, _mm512_setzero_si512(), a);
  return {_mm512_dpbusd_epi32(acc.v, w.magnitude, s)};
}
inline void prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
inline void prefetch_far(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace divine::DIVINE_LEVEL
