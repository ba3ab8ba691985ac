// The SIMD vocabulary on AVX2 + FMA + F16C, also with AVX-VNNI where DIVINE_VNNI is set: two
// 256-bit registers make 16 lanes, lanes 0..7 in `a` and 8..15 in `b`. Meanings: scalar.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "bytes16.h"

namespace divine::DIVINE_LEVEL {

// Ends a step of a sum here: left alone, GCC gathers the products of a whole block before it adds
// any, and spills them all.
#define DIVINE_IN_ORDER(x) asm("" : "+x"((x).a), "+x"((x).b))

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct B {
  __m256i a, b;
};
using A = __m256i;

inline F fset(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F fload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void fstore(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F fadd(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F fsub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F fmul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F fdiv(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F ffma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F fnma(F x, F y, F z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
inline F fmax2(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F fload_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline F fload_bf16(const uint16_t* p) {
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i hi =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
inline F fset_f16(const uint16_t* p) {
  const __m256 v = _mm256_cvtph_ps(_mm_set1_epi16(short(*p)));
  return {v, v};
}
inline void fstore_f16(uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F ffirst(F x, int count, float rest) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 ma = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
  const __m256 mb = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lane));
  return {_mm256_blendv_ps(_mm256_set1_ps(rest), x.a, ma),
          _mm256_blendv_ps(_mm256_set1_ps(rest), x.b, mb)};
}
inline I iset(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I imax(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline I imin(I x, I y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
inline I iand(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline int32_t imost(I x) {
  const __m256i m = _mm256_max_epi32(x.a, x.b);
  __m128i v = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}
inline void ipair_sums(I x, I y, int32_t* out) {
  const __m256i s = _mm256_add_epi32(x.a, x.b), t = _mm256_add_epi32(y.a, y.b);
  const __m128i u = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  const __m128i v = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_hadd_epi32(u, v));
}
inline I ishl23(I x) { return {_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)}; }
inline F itof(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I ftoi(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline I fbits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline F ffrombits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline void istore_i8(int8_t* p, I x) {  // values must fit
  const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
inline I iload_i8(const int8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
inline void istore(int32_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}

inline I xwiden_i8(X x) {
  return {_mm256_cvtepi8_epi32(x.v), _mm256_cvtepi8_epi32(_mm_srli_si128(x.v, 8))};
}
inline I xwiden_u8(X x) {
  return {_mm256_cvtepu8_epi32(x.v), _mm256_cvtepu8_epi32(_mm_srli_si128(x.v, 8))};
}

inline B bload(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline void bstore(uint8_t* p, B x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.b);
}
template <int N>
inline B bshift_and(B x, int mask) {
  const __m256i m = _mm256_set1_epi8(char(mask));
  if constexpr (N > 0) {
    x = {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
  } else if constexpr (N < 0) {
    x = {_mm256_slli_epi16(x.a, -N), _mm256_slli_epi16(x.b, -N)};
  }
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
inline B bor(B x, B y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline B blookup(const int8_t* table, B codes) {
  const __m256i t =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, codes.a), _mm256_shuffle_epi8(t, codes.b)};
}
inline A abcast(const int8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
struct SignedCodes {
  B w, magnitude;
};
inline SignedCodes bsigned(B w) { return {w, {_mm256_abs_epi8(w.a), _mm256_abs_epi8(w.b)}}; }
inline void prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
inline void prefetch_far(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

#ifdef DIVINE_VNNI

using Acc = I;
using S = I;
inline S sscale(X x) { return xwiden_i8(x); }
inline S sone() { return iset(1); }
inline Acc azero() { return iset(0); }
template <int OFFSET>
inline Acc aoffset(const int32_t* pairs) {
  return iset((int16_t(*pairs & 0xffff) + int16_t(*pairs >> 16)) * OFFSET);
}
inline Acc adot(Acc acc, B w, A a) {
  acc = {_mm256_dpbusd_avx_epi32(acc.a, w.a, a), _mm256_dpbusd_avx_epi32(acc.b, w.b, a)};
  DIVINE_IN_ORDER(acc);
  return acc;
}
inline I awiden(Acc acc, S s) {
  return {_mm256_mullo_epi32(acc.a, s.a), _mm256_mullo_epi32(acc.b, s.b)};
}
inline I idot(I acc, const SignedCodes& w, A a) {
  return {_mm256_dpbusd_avx_epi32(acc.a, w.magnitude.a, _mm256_sign_epi8(a, w.w.a)),
          _mm256_dpbusd_avx_epi32(acc.b, w.magnitude.b, _mm256_sign_epi8(a, w.w.b))};
}

#else

struct Acc {  // 2 x int16 per output: k % 4 in {0, 1} and {2, 3}
  __m256i a, b;
};
struct S {  // the scale twice per output, int16
  __m256i a, b;
};
inline S sscale(X x) {
  const __m256i w = _mm256_permute4x64_epi64(_mm256_cvtepi8_epi16(x.v), 0xd8);
  return {_mm256_unpacklo_epi16(w, w), _mm256_unpackhi_epi16(w, w)};
}
inline S sone() { return {_mm256_set1_epi16(1), _mm256_set1_epi16(1)}; }
inline Acc azero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
template <int OFFSET>
inline Acc aoffset(const int32_t* pairs) {
  __m256i v = _mm256_set1_epi32(*pairs);
  if constexpr (OFFSET == 12) {
    v = _mm256_add_epi16(_mm256_slli_epi16(v, 3), _mm256_slli_epi16(v, 2));
  } else {
    constexpr int shift = OFFSET == 4 ? 2 : OFFSET == 8 ? 3 : OFFSET == 16 ? 4 : 5;
    static_assert(OFFSET == 1 << shift);
    v = _mm256_slli_epi16(v, shift);
  }
  return {v, v};
}
inline Acc adot(Acc acc, B w, A a) {
  acc = {_mm256_add_epi16(acc.a, _mm256_maddubs_epi16(w.a, a)),
         _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(w.b, a))};
  DIVINE_IN_ORDER(acc);
  return acc;
}
inline I awiden(Acc acc, S s) {
  return {_mm256_madd_epi16(acc.a, s.a), _mm256_madd_epi16(acc.b, s.b)};
}
inline I idot(I acc, const SignedCodes& w, A a) {
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i pa = _mm256_maddubs_epi16(w.magnitude.a, _mm256_sign_epi8(a, w.w.a));
  const __m256i pb = _mm256_maddubs_epi16(w.magnitude.b, _mm256_sign_epi8(a, w.w.b));
  acc = {_mm256_add_epi32(acc.a, _mm256_madd_epi16(pa, one)),
         _mm256_add_epi32(acc.b, _mm256_madd_epi16(pb, one))};
  DIVINE_IN_ORDER(acc);
  return acc;
}

#endif
#undef DIVINE_IN_ORDER

}  // namespace divine::DIVINE_LEVEL
