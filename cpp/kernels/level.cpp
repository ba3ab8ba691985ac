// One CPU level: compiled once per level with its own flags and DIVINE_LEVEL, DIVINE_TABLE,
// DIVINE_SIMD (the vocabulary's header). Everything lives in the level's own namespace, so that the
// linker never merges code of two instruction sets.
#include "cpu_features.h"
#include "half.h"
#include "table.h"
#include DIVINE_SIMD
#include "attention.h"
#include "matmul.h"
#include "vector_ops.h"

namespace divine {
namespace DIVINE_LEVEL {

bool supported() {
#if defined(DIVINE_IS_AVX512)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#elif defined(DIVINE_IS_AVX2)
  const bool base = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#ifdef DIVINE_VNNI
  return base && has_avx_vnni();
#else
  return base;
#endif
#else
  return true;
#endif
}

template <Format FMT>
constexpr void fill(KernelTable& t) {
  t.tile[int(FMT)][0] = tile_for<FMT, 1>();
  t.tile[int(FMT)][1] = tile_for<FMT, 2>();
  t.tile[int(FMT)][2] = tile_for<FMT, 3>();
  t.tile[int(FMT)][3] = tile_for<FMT, 4>();
  t.tile[int(FMT)][4] = tile_for<FMT, 5>();
  t.tile[int(FMT)][5] = tile_for<FMT, 6>();
  t.many[int(FMT)] = many_for<FMT>();
}

constexpr KernelTable make_table() {
  KernelTable t{};
  t.name = DIVINE_NAME;
  t.supported = supported;
  fill<Format::F32>(t), fill<Format::F16>(t), fill<Format::BF16>(t);
  fill<Format::Q4_0>(t), fill<Format::Q4_1>(t), fill<Format::Q5_0>(t), fill<Format::Q5_1>(t);
  fill<Format::Q8_0>(t), fill<Format::Q2_K>(t), fill<Format::Q3_K>(t), fill<Format::Q4_K>(t);
  fill<Format::Q5_K>(t), fill<Format::Q6_K>(t), fill<Format::IQ4_NL>(t), fill<Format::IQ4_XS>(t);
  fill<Format::MXFP4>(t);
  t.rms_norm = rms_norm;
  t.quantize = quantize;
  t.silu_mul = silu_mul;
  t.gelu_mul = gelu_mul;
  t.sum_exp = sum_exp;
  t.scores = scores;
  t.softmax = softmax;
  t.values = values;
  t.store_value = store_value;
  t.store_key = store_key;
  t.scale_add = scale_add;
  t.exp1 = exp_one;
  t.read = read_bytes;
  return t;
}

}  // namespace DIVINE_LEVEL

constexpr KernelTable DIVINE_TABLE = DIVINE_LEVEL::make_table();

}  // namespace divine
