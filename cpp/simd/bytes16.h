// The part of the SIMD vocabulary that AVX2 and AVX-512 share: 16 bytes, one per output.
// Meanings: scalar.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace divine::DIVINE_LEVEL {

struct X {
  __m128i v;
};

inline X xload(const uint8_t* p) { return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))}; }
template <int N>
inline X xshr(X x) {
  return {_mm_and_si128(_mm_srli_epi16(x.v, N), _mm_set1_epi8(char(0xff >> N)))};
}
template <int N>
inline X xshl(X x) {
  return {_mm_and_si128(_mm_slli_epi16(x.v, N), _mm_set1_epi8(char(0xff << N)))};
}
inline X xand(X x, int mask) { return {_mm_and_si128(x.v, _mm_set1_epi8(char(mask)))}; }
inline X xor_(X x, X y) { return {_mm_or_si128(x.v, y.v)}; }
inline X xsub(X x, int n) { return {_mm_sub_epi8(x.v, _mm_set1_epi8(char(n)))}; }

}  // namespace divine::DIVINE_LEVEL
