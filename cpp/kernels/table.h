// The whole surface of one CPU level: plain structs and function pointers, no templates.
// Each level (scalar, avx2, avx_vnni, avx512) fills one table from the same source, level.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "layout.h"

namespace divine {

// One row's input to a matrix product: float32, and int8 with a scale per 32 where the format is
// quantized. Sums serve minima and offsets. Pointers are to the whole row.
struct Activation {
  const float* x;          // [k]
  const int8_t* q;         // [k] clamped to [-127, 127]
  const float* scale;      // [k / 32] x is about scale * q
  const float* sum32;      // [k / 32] scale * (sum of q)
  const float* sum16;      // [k / 16] the same per 16
  const int32_t* pairs32;  // [k / 32] negated sums of q, two int16: k % 4 in {0, 1} and in {2, 3}
  const int32_t* pairs16;  // [k / 16]
};

// Weights to fetch ahead while a tile runs: `step` bytes from `next` on for each 32 k.
struct Prefetch {
  const uint8_t* next;
  int step;
  bool far;  // not before the next group: into the second-level cache, the first has work to do
};

// out[r][0..15] = one group of 16 outputs times `rows` activations.
using TileFn = void (*)(const uint8_t* group, int units, const Activation* rows, float (*out)[16],
                        Prefetch fetch);

// The same for kTileRows + 1 to kManyRows rows.
using ManyFn = void (*)(const uint8_t* group, int units, const Activation* a, int rows,
                        float (*out)[16], Prefetch fetch);

constexpr int kTileRows = 6;   // most pass rows per matrix tile
constexpr int kManyRows = 20;  // most that share opened weights, so that their input stays near
constexpr int kQueryTile = 6;  // most queries per attention tile
constexpr int kKeyBlock = 16;  // keys stored side by side
constexpr int kSplit = 256;    // keys between two fixed boundaries of the attention sum

// Rows of a tile where there are several: a sixth fits the registers but takes longer than its
// share, which still beats a second tile.
constexpr int kSeveralTiles = 5;
static constexpr int tiles_of(int rows) {
  return rows <= kTileRows ? 1 : (rows + kSeveralTiles - 1) / kSeveralTiles;
}

enum class KvType : int { F16, Q8_0 };

struct KernelTable {
  const char* name;
  bool (*supported)();
  TileFn tile[int(Format::kCount)][kTileRows];
  ManyFn many[int(Format::kCount)];  // null where tiles are as quick

  // x * rsqrt(mean(x^2) + eps) * weight; weight may be null
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  // fills q, scale, sums and pairs of an Activation for k in [begin, end), multiples of 32
  void (*quantize)(const float* x, int begin, int end, int8_t* q, float* scale, float* sum32,
                   float* sum16, int32_t* pairs32, int32_t* pairs16);
  void (*silu_mul)(const float* gate, const float* up, int n, float* out);
  void (*gelu_mul)(const float* gate, const float* up, int n, float* out);
  // sum of exp(x[i] - offset), i < n: 16 lane sums, then one fixed tree
  float (*sum_exp)(const float* x, int n, float offset);

  // scores_i[at + lane] = q_i . key_lane for one block of 16 keys; k in the cache's layout
  void (*scores)(KvType type, const uint8_t* k, int head_dim, const float* const* q, int queries,
                 float* const* scores, int at);
  // in place: p[j] = exp(s[j] - max) for first <= j < count, others untouched; max and sum returned
  void (*softmax)(float* scores, int first, int count, float softcap, float* max, float* sum);
  // out_i[d] += sum over keys of p_i[j] * v_j[d], j from first_i to count_i, in order
  void (*values)(KvType type, const uint8_t* const* v, int head_dim, const float* const* p,
                 const int* first, const int* count, int queries, float* const* out);
  // rounds one head's value or key vector to the cache's type
  void (*store_value)(KvType type, const float* x, int head_dim, uint8_t* v);
  void (*store_key)(KvType type, const float* x, int head_dim, int lane, uint8_t* block);
  // out[d] = out[d] * a + x[d] * b
  void (*scale_add)(float* out, float a, const float* x, float b, int n);
  float (*exp1)(float x);
  // reads all bytes, a multiple of 64, and leaves fetching ahead to the hardware, which does it
  // best for a plain stream; the result keeps the reading alive
  uint64_t (*read)(const uint8_t* p, size_t bytes);
};

extern const KernelTable kScalar, kAvx2, kAvxVnni, kAvx512;

}  // namespace divine
