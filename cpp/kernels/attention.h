// Attention over one block of keys or one split of values, for up to six queries at a time.
//
// Keys lie in blocks of 16, one key per lane, so a score has one chain of additions over the head's
// channels; values lie one after another, one channel per lane, so an output has one chain over the
// keys. A query's numbers therefore do not depend on which queries or keys share its tile.
//
// Layouts (head_dim is a multiple of 16, of 32 for Q8_0):
//   F16 key block   [head_dim][16 keys] half          F16 value  [head_dim] half
//   Q8_0 key block  [head_dim][16 keys] int8, then [head_dim / 32][16 keys] half scales
//   Q8_0 value      [head_dim] int8, then [head_dim / 32] half scales
#pragma once
#include "vector_ops.h"

namespace divine::DIVINE_LEVEL {

// Keys of a split lie before its values in one stretch of memory, read from front to back: this far
// ahead of it.
constexpr int kCacheAhead = 4096;

template <int Q>
void scores_f16(const uint8_t* k, int head_dim, const float* const* q, float* const* out, int at) {
  F sum[Q];
  for (int i = 0; i < Q; ++i) sum[i] = fset(0.0f);
  for (int d = 0; d < head_dim; ++d) {
    if (d % 2 == 0) prefetch(k + 32 * d + kCacheAhead);
    const F key = fload_f16(reinterpret_cast<const uint16_t*>(k) + 16 * d);
    for (int i = 0; i < Q; ++i) sum[i] = ffma(key, fset(q[i][d]), sum[i]);
  }
  for (int i = 0; i < Q; ++i) fstore(out[i] + at, sum[i]);
}

template <int Q>
void scores_q8(const uint8_t* k, int head_dim, const float* const* q, float* const* out, int at) {
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(k + 16 * head_dim);
  F sum[Q];
  for (int i = 0; i < Q; ++i) sum[i] = fset(0.0f);
  for (int d0 = 0; d0 < head_dim; d0 += 32) {
    const F scale = fload_f16(scales + d0 / 2);
    for (int d = d0; d < d0 + 32; ++d) {
      if (d % 4 == 0) prefetch(k + 16 * d + kCacheAhead);
      const F key = fmul(itof(iload_i8(reinterpret_cast<const int8_t*>(k) + 16 * d)), scale);
      for (int i = 0; i < Q; ++i) sum[i] = ffma(key, fset(q[i][d]), sum[i]);
    }
  }
  for (int i = 0; i < Q; ++i) fstore(out[i] + at, sum[i]);
}

void scores(KvType type, const uint8_t* k, int head_dim, const float* const* q, int queries,
            float* const* out, int at) {
  using Fn = void (*)(const uint8_t*, int, const float* const*, float* const*, int);
  static constexpr Fn f16[] = {scores_f16<1>, scores_f16<2>, scores_f16<3>,
                               scores_f16<4>, scores_f16<5>, scores_f16<6>};
  static constexpr Fn q8[] = {scores_q8<1>, scores_q8<2>, scores_q8<3>,
                              scores_q8<4>, scores_q8<5>, scores_q8<6>};
  (type == KvType::F16 ? f16 : q8)[queries - 1](k, head_dim, q, out, at);
}

// Lanes outside [first, count) of the 16 keys from j on become `rest`.
inline F only_visible(F v, int j, int first, int count, float rest) {
  v = ffirst(v, count - j, rest);
  if (j < first) {
    float w[16];
    fstore(w, v);
    for (int i = 0; i < first - j; ++i) w[i] = rest;
    v = fload(w);
  }
  return v;
}

void softmax(float* s, int first, int count, float softcap, float* max_out, float* sum_out) {
  const float lowest = -__builtin_inff();
  F top = fset(lowest);
  // Lane i holds keys j with j % 16 == i, wherever the range begins.
  const int begin = first / 16 * 16;
  for (int j = begin; j < count; j += 16) {
    const bool whole = j >= first && j + 16 <= count;
    F v = fload(s + j);
    if (!whole) v = only_visible(v, j, first, count, lowest);
    if (softcap > 0.0f) v = fmul(ftanh(fdiv(v, fset(softcap))), fset(softcap));
    if (softcap > 0.0f || !whole) fstore(s + j, v);
    top = fmax2(v, top);
  }
  const float max = lane_max(top);
  F sum = fset(0.0f);
  for (int j = begin; j < count; j += 16) {
    F p = fexp(fsub(fload(s + j), fset(max)));
    if (j < first || j + 16 > count) p = only_visible(p, j, first, count, 0.0f);
    fstore(s + j, p);
    sum = fadd(sum, p);
  }
  *max_out = max;
  *sum_out = lane_sum(sum);
}

template <bool F16>
inline F load_value(const uint8_t* v, int d, int head_dim) {
  if constexpr (F16) {
    return fload_f16(reinterpret_cast<const uint16_t*>(v) + d);
  } else {
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(v + head_dim);
    return fmul(itof(iload_i8(reinterpret_cast<const int8_t*>(v) + d)), fset_f16(scales + d / 32));
  }
}

// Keys [begin, end) of each query, added to out in order; 16 keys at a time stay in the cache for
// all channels.
template <bool F16, int Q>
inline void add_values(const uint8_t* const* v, int head_dim, const float* const* p, int begin,
                       int end, float* const* out) {
  for (int d = 0; d < head_dim; d += 16) {
    F sum[Q];
    for (int i = 0; i < Q; ++i) sum[i] = fload(out[i] + d);
    for (int j = begin; j < end; ++j) {
      if (d % 32 == 0) prefetch(v[j] + (F16 ? 2 : 1) * d + kCacheAhead);
      const F value = load_value<F16>(v[j], d, head_dim);
      for (int i = 0; i < Q; ++i) sum[i] = ffma(value, fset(p[i][j]), sum[i]);
    }
    for (int i = 0; i < Q; ++i) fstore(out[i] + d, sum[i]);
  }
}

template <bool F16, int Q>
void values_tile(const uint8_t* const* v, int head_dim, const float* const* p, const int* first,
                 const int* count, float* const* out) {
  int begin = first[0], end = count[0];
  for (int i = 0; i < Q; ++i) {
    begin = first[i] < begin ? first[i] : begin;
    end = count[i] > end ? count[i] : end;
  }
  for (int j = begin / kKeyBlock * kKeyBlock; j < end; j += kKeyBlock) {
    int from[Q], to[Q], all_from = j, all_to = j + kKeyBlock;  // keys that a query, and all, see
    for (int i = 0; i < Q; ++i) {
      from[i] = first[i] > j ? first[i] : j;
      to[i] = count[i] < j + kKeyBlock ? count[i] : j + kKeyBlock;
      all_from = from[i] > all_from ? from[i] : all_from;
      all_to = to[i] < all_to ? to[i] : all_to;
    }
    if (all_from >= all_to) {
      for (int i = 0; i < Q; ++i) add_values<F16, 1>(v, head_dim, p + i, from[i], to[i], out + i);
      continue;
    }
    for (int i = 0; i < Q; ++i)
      if (from[i] < all_from) add_values<F16, 1>(v, head_dim, p + i, from[i], all_from, out + i);
    add_values<F16, Q>(v, head_dim, p, all_from, all_to, out);
    for (int i = 0; i < Q; ++i)
      if (all_to < to[i]) add_values<F16, 1>(v, head_dim, p + i, all_to, to[i], out + i);
  }
}

void values(KvType type, const uint8_t* const* v, int head_dim, const float* const* p,
            const int* first, const int* count, int queries, float* const* out) {
  using Fn = void (*)(const uint8_t* const*, int, const float* const*, const int*, const int*,
                      float* const*);
  static constexpr Fn f16[] = {values_tile<true, 1>, values_tile<true, 2>, values_tile<true, 3>,
                               values_tile<true, 4>, values_tile<true, 5>, values_tile<true, 6>};
  static constexpr Fn q8[] = {values_tile<false, 1>, values_tile<false, 2>, values_tile<false, 3>,
                              values_tile<false, 4>, values_tile<false, 5>, values_tile<false, 6>};
  (type == KvType::F16 ? f16 : q8)[queries - 1](v, head_dim, p, first, count, out);
}

// Q8_0 rounding of 32 values: scale = amax / 127 as half, codes from the unrounded scale, as GGUF
// does.
inline uint16_t quantize_q8(const float* x, int8_t* q) {
  float amax = 0.0f;
  bool bad = false;
  for (int i = 0; i < 32; ++i) {
    const float m = __builtin_fabsf(x[i]);
    bad |= !(m <= 3.4e38f);
    amax = m > amax ? m : amax;
  }
  if (bad) {  // a NaN or infinity must stay visible: a NaN scale
    for (int i = 0; i < 32; ++i) q[i] = 1;
    return 0x7e00;
  }
  const float step = amax / 127.0f, inverse = step != 0.0f ? 1.0f / step : 0.0f;
  for (int i = 0; i < 32; ++i) {
    const float v = x[i] * inverse;
    q[i] = int8_t(v >= 0 ? int(v + 0.5f) : -int(0.5f - v));
  }
  return float_to_half(step);
}

void store_value(KvType type, const float* x, int head_dim, uint8_t* v) {
  if (type == KvType::F16) {
    for (int d = 0; d < head_dim; d += 16)
      fstore_f16(reinterpret_cast<uint16_t*>(v) + d, fload(x + d));
  } else {
    uint16_t* scales = reinterpret_cast<uint16_t*>(v + head_dim);
    for (int d = 0; d < head_dim; d += 32)
      scales[d / 32] = quantize_q8(x + d, reinterpret_cast<int8_t*>(v) + d);
  }
}

void store_key(KvType type, const float* x, int head_dim, int lane, uint8_t* block) {
  if (type == KvType::F16) {
    uint16_t half[16];
    for (int d = 0; d < head_dim; d += 16) {
      fstore_f16(half, fload(x + d));
      for (int i = 0; i < 16; ++i)
        reinterpret_cast<uint16_t*>(block)[16 * (d + i) + lane] = half[i];
    }
  } else {
    int8_t q[32];
    uint16_t* scales = reinterpret_cast<uint16_t*>(block + 16 * head_dim);
    for (int d = 0; d < head_dim; d += 32) {
      scales[d / 2 + lane] = quantize_q8(x + d, q);
      for (int i = 0; i < 32; ++i) block[16 * (d + i) + lane] = uint8_t(q[i]);
    }
  }
}

}  // namespace divine::DIVINE_LEVEL
