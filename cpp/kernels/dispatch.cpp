#include "dispatch.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "half.h"
#include "repack.h"

namespace divine {

const std::vector<const KernelTable*>& all_levels() {
#if defined(__x86_64__)
  static const std::vector<const KernelTable*> levels = {&kScalar, &kAvx2, &kAvxVnni, &kAvx512};
#else
  static const std::vector<const KernelTable*> levels = {&kScalar};
#endif
  return levels;
}

std::vector<std::string> supported_levels() {
  std::vector<std::string> names;
  for (const KernelTable* level : all_levels())
    if (level->supported()) names.push_back(level->name);
  return names;
}

namespace {

// Where the float16 scales of a block lie, and the float exponent byte of MXFP4.
struct ScalePlaces {
  int half[2];
  int count;
};

ScalePlaces scale_places(Format f) {
  switch (f) {
    case Format::Q4_1:
    case Format::Q5_1:
    case Format::Q4_K:
    case Format::Q5_K:
      return {{0, 2}, 2};
    case Format::Q4_0:
    case Format::Q5_0:
    case Format::Q8_0:
    case Format::IQ4_NL:
    case Format::IQ4_XS:
      return {{0, 0}, 1};
    case Format::Q6_K:
      return {{208, 0}, 1};
    case Format::Q3_K:
      return {{108, 0}, 1};
    case Format::Q2_K:
      return {{80, 82}, 2};
    default:
      return {{0, 0}, 0};
  }
}

}  // namespace

std::vector<uint8_t> random_blocks(Format format, int rows, int in, unsigned seed) {
  const FormatInfo& fi = info(format);
  const size_t blocks = size_t(rows) * size_t(in / fi.block);
  std::vector<uint8_t> data(blocks * fi.block_bytes);
  std::minstd_rand random(seed + 1);
  for (auto& byte : data) byte = uint8_t(random() >> 8);
  const auto uniform = [&] { return float(random() % 10000) / 10000.0f - 0.5f; };
  for (size_t b = 0; b < blocks; ++b) {
    uint8_t* p = data.data() + b * fi.block_bytes;
    const ScalePlaces places = scale_places(format);
    for (int i = 0; i < places.count; ++i) {
      const uint16_t h = float_to_half(0.02f * uniform());
      std::memcpy(p + places.half[i], &h, 2);
    }
    if (format == Format::MXFP4) p[0] = uint8_t(118 + random() % 6);
    if (format == Format::F32) {
      const float v = uniform();
      std::memcpy(p, &v, 4);
    } else if (format == Format::F16) {
      const uint16_t h = float_to_half(uniform());
      std::memcpy(p, &h, 2);
    } else if (format == Format::BF16) {
      const uint16_t h = uint16_t(float_to_bits(uniform()) >> 16);
      std::memcpy(p, &h, 2);
    }
  }
  return data;
}

namespace {

struct Sample {  // one row's inputs, quantized by the scalar level
  std::vector<float> x, scale, sum32, sum16;
  std::vector<int8_t> q;
  std::vector<int32_t> pairs32, pairs16;

  Sample(const KernelTable& k, int n, unsigned seed)
      : x(n), scale(n / 32), sum32(n / 32), sum16(n / 16), q(n), pairs32(n / 32), pairs16(n / 16) {
    std::minstd_rand random(seed * 77 + 5);
    for (auto& v : x) v = float(random() % 20001) / 5000.0f - 2.0f;
    x[3] = 0.0f, x[n / 2] = 40.0f;
    k.quantize(x.data(), 0, n, q.data(), scale.data(), sum32.data(), sum16.data(), pairs32.data(),
               pairs16.data());
  }
  Activation view() const {
    return {x.data(),     q.data(),       scale.data(),  sum32.data(),
            sum16.data(), pairs32.data(), pairs16.data()};
  }
  bool operator==(const Sample& o) const {
    return q == o.q && scale == o.scale && sum32 == o.sum32 && sum16 == o.sum16 &&
           pairs32 == o.pairs32 && pairs16 == o.pairs16;
  }
};

bool same(const void* a, const void* b, size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

std::string check_tiles(const KernelTable& level) {
  constexpr int kCheckedRows = 10;
  constexpr Prefetch none{nullptr, 0, false};
  constexpr int in = 512;
  std::vector<Sample> samples;
  std::vector<Activation> rows;
  for (unsigned r = 0; r < kCheckedRows; ++r) samples.emplace_back(kScalar, in, r);
  for (const Sample& s : samples) rows.push_back(s.view());
  for (int f = 0; f < int(Format::kCount); ++f) {
    const Format format = Format(f);
    const FormatInfo& fi = info(format);
    const std::vector<uint8_t> raw = random_blocks(format, kLanes, in, unsigned(f));
    const size_t row_bytes = size_t(in / fi.block) * fi.block_bytes;
    const uint8_t* sources[kLanes];
    for (int i = 0; i < kLanes; ++i) sources[i] = raw.data() + size_t(i) * row_bytes;
    std::vector<uint8_t> group(size_t(in / fi.block) * unit_bytes(format));
    repack_group(format, sources, in, group.data());
    for (int n = 1; n <= kTileRows; ++n) {
      float want[kTileRows][16], got[kTileRows][16];
      kScalar.tile[f][n - 1](group.data(), in / fi.block, rows.data(), want, none);
      level.tile[f][n - 1](group.data(), in / fi.block, rows.data(), got, none);
      if (!same(want, got, size_t(n) * 64))
        return std::string(fi.name) + " product of " + std::to_string(n) + " rows";
    }
    for (const int n : {7, kCheckedRows}) {  // tiles of 3, 4 and 5
      if (level.many[f] == nullptr) continue;
      float want[kCheckedRows][16], got[kCheckedRows][16];
      for (int r = 0; r < n; ++r)
        kScalar.tile[f][0](group.data(), in / fi.block, rows.data() + r, want + r, none);
      level.many[f](group.data(), in / fi.block, rows.data(), n, got, none);
      if (!same(want, got, size_t(n) * 64))
        return std::string(fi.name) + " product of " + std::to_string(n) + " rows";
    }
  }
  return "";
}

std::string check_attention(const KernelTable& level) {
  constexpr int dim = 64, keys = 37, queries = 5;
  const Sample s(kScalar, dim * (keys + queries), 9);
  for (const KvType type : {KvType::F16, KvType::Q8_0}) {
    std::vector<uint8_t> blocks[2];
    std::vector<uint8_t> vectors[2];
    std::vector<float> scores[2], out[2];
    float max[2][queries], sum[2][queries];
    for (int l = 0; l < 2; ++l) {
      const KernelTable& k = l == 0 ? kScalar : level;
      const size_t block = type == KvType::F16 ? 32 * dim : 17 * dim;
      const size_t vector = type == KvType::F16 ? 2 * dim : dim + dim / 16;
      blocks[l].resize(3 * block);
      vectors[l].resize(keys * vector);
      scores[l].resize(queries * kSplit);
      out[l].resize(queries * dim);
      const uint8_t* v[kSplit];
      for (int j = 0; j < keys; ++j) {
        k.store_key(type, s.x.data() + j * dim, dim, j % 16, blocks[l].data() + j / 16 * block);
        k.store_value(type, s.x.data() + j * dim, dim, vectors[l].data() + j * vector);
        v[j] = vectors[l].data() + j * vector;
      }
      const float* q[queries];
      const float* p[queries];
      float *to[queries], *o[queries];
      int first[queries], count[queries];
      for (int i = 0; i < queries; ++i) {
        q[i] = s.x.data() + (keys + i) * dim;
        p[i] = scores[l].data() + i * kSplit;
        o[i] = out[l].data() + i * dim;
        first[i] = i, count[i] = keys - 2 * i;
      }
      for (int i = 0; i < queries; ++i) to[i] = scores[l].data() + i * kSplit;
      for (int b = 0; b < 3; ++b)
        k.scores(type, blocks[l].data() + size_t(b) * block, dim, q, queries, to, 16 * b);
      for (int i = 0; i < queries; ++i)
        k.softmax(scores[l].data() + i * kSplit, first[i], count[i], i == 2 ? 30.0f : 0.0f,
                  &max[l][i], &sum[l][i]);
      k.values(type, v, dim, p, first, count, queries, o);
    }
    if (blocks[0] != blocks[1] || vectors[0] != vectors[1]) return "storing keys and values";
    if (!same(max[0], max[1], sizeof max[0]) || !same(sum[0], sum[1], sizeof sum[0]))
      return "softmax";
    if (!same(out[0].data(), out[1].data(), out[0].size() * 4)) return "attention";
  }
  return "";
}

std::string check_vectors(const KernelTable& level) {
  constexpr int n = 96;
  const Sample want(kScalar, n, 3), got(level, n, 3);
  if (!(want == got)) return "activation quantization";
  const Sample other(kScalar, n, 4);
  float a[n], b[n];
  kScalar.rms_norm(want.x.data(), other.x.data(), 1e-5f, n - 5, a);
  level.rms_norm(want.x.data(), other.x.data(), 1e-5f, n - 5, b);
  if (!same(a, b, (n - 5) * 4)) return "norm";
  kScalar.silu_mul(want.x.data(), other.x.data(), n - 7, a);
  level.silu_mul(want.x.data(), other.x.data(), n - 7, b);
  if (!same(a, b, (n - 7) * 4)) return "silu";
  kScalar.gelu_mul(want.x.data(), other.x.data(), n, a);
  level.gelu_mul(want.x.data(), other.x.data(), n, b);
  if (!same(a, b, n * 4)) return "gelu";
  kScalar.scale_add(a, 0.3f, other.x.data(), -1.7f, n - 1);
  level.scale_add(b, 0.3f, other.x.data(), -1.7f, n - 1);
  if (!same(a, b, n * 4)) return "scaled addition";
  const float e0 = kScalar.sum_exp(want.x.data(), n - 3, 40.0f);
  const float e1 = level.sum_exp(want.x.data(), n - 3, 40.0f);
  if (!same(&e0, &e1, 4)) return "sum of exponentials";
  return "";
}

}  // namespace

std::string check_level(const KernelTable& level) {
  for (const auto& check : {check_tiles, check_attention, check_vectors})
    if (std::string what = check(level); !what.empty()) return what;
  return "";
}

const KernelTable& choose_level(const std::string& name, std::string* warning) {
  const auto& levels = all_levels();
  if (!name.empty()) {
    for (const KernelTable* level : levels)
      if (name == level->name) {
        if (!level->supported())
          throw std::invalid_argument("this processor does not have the level " + name);
        return *level;
      }
    throw std::invalid_argument("unknown level " + name);
  }
  for (auto it = levels.rbegin(); it != levels.rend(); ++it) {
    if (!(*it)->supported()) continue;
    const std::string wrong = check_level(**it);
    if (wrong.empty()) return **it;
    if (warning != nullptr)
      *warning += std::string("level ") + (*it)->name + " failed its check (" + wrong +
                  ") and is not used; ";
  }
  return kScalar;
}

}  // namespace divine
