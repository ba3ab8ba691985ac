// The interleaved layout that weights are repacked into at load, and its sizes.
//
// A matrix [out, in] becomes ceil(out / 16) groups of 16 output rows. A group is a run of units,
// one per block of the format along k (256 or 32 weights; 1 for the float types). A unit holds the
// codes of 16 rows interleaved (per step of 4 k: 16 rows x 4 k), then the scales of 16 rows side by
// side. The codes of 32 k are split into planes of 4, 2 and 1 bits (or whole bytes):
//   4-bit plane  4 vectors of 64 bytes, vector v: step 2v in the low, step 2v + 1 in the high
//   nibble 2-bit plane  2 vectors, vector v: steps 4v .. 4v + 3, two bits each from the lowest
//   1-bit plane  1 vector: step s in bit s
// Nothing is lost and nothing is added: a group has exactly the bytes of its 16 rows in the file.
#pragma once
#include <cstddef>
#include <cstdint>

namespace divine {

constexpr int kLanes = 16;

enum class Format : int {
  F32,
  F16,
  BF16,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q8_0,
  Q2_K,
  Q3_K,
  Q4_K,
  Q5_K,
  Q6_K,
  IQ4_NL,
  IQ4_XS,
  MXFP4,
  kCount
};

struct FormatInfo {
  const char* name;  // the GGML name
  int block;         // weights per block along k
  int block_bytes;   // bytes per block in the file
  int code_bits;     // bits per code; 0 for float types
};

constexpr FormatInfo kFormats[] = {
    {"F32", 1, 4, 0},      {"F16", 1, 2, 0},      {"BF16", 1, 2, 0},       {"Q4_0", 32, 18, 4},
    {"Q4_1", 32, 20, 4},   {"Q5_0", 32, 22, 5},   {"Q5_1", 32, 24, 5},     {"Q8_0", 32, 34, 8},
    {"Q2_K", 256, 84, 2},  {"Q3_K", 256, 110, 3}, {"Q4_K", 256, 144, 4},   {"Q5_K", 256, 176, 5},
    {"Q6_K", 256, 210, 6}, {"IQ4_NL", 32, 18, 4}, {"IQ4_XS", 256, 136, 4}, {"MXFP4", 32, 17, 4},
};
static_assert(sizeof(kFormats) / sizeof(kFormats[0]) == size_t(Format::kCount));

static constexpr const FormatInfo& info(Format f) { return kFormats[int(f)]; }

// Bytes of the codes of 16 rows x 32 k.
static constexpr int codes32_bytes(int bits) { return kLanes * 4 * bits; }

// Bytes of one unit: 16 rows of one block.
static constexpr size_t unit_bytes(Format f) { return size_t(kLanes) * info(f).block_bytes; }

// Byte offsets inside a unit; codes come first.
constexpr int kQ4K_Low = 2048, kQ4K_High = 2176,
              kQ4K_D = 2240;  // Q4_K: nibbles, 2-bit rest, d, dmin
constexpr int kQ5K_Low = 2560, kQ5K_High = 2688, kQ5K_D = 2752;  // Q5_K: the same
constexpr int kQ6K_Scale = 3072, kQ6K_D = 3328;                  // Q6_K: 16 int8 scales, d
constexpr int kQ3K_Low = 1536, kQ3K_High = 1664, kQ3K_D = 1728;  // Q3_K: 16 x 6 bits, d
constexpr int kQ2K_Scale = 1024, kQ2K_D = 1280;                  // Q2_K: 16 x (4 + 4 bits), d, dmin
constexpr int kIQ4XS_Low = 2048, kIQ4XS_High = 2112, kIQ4XS_D = 2144;  // 8 x 6 bits, d

constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
// Twice the E2M1 values plus 12, so that codes are unsigned; the sum of activations takes 12 back.
constexpr int8_t kMXFP4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr int kMXFP4Offset = 12;

}  // namespace divine
