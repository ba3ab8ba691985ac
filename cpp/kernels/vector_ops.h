// Norm, activation quantization, gated activations and exponentials over 16 virtual lanes.
#pragma once

namespace divine::DIVINE_LEVEL {

// The one tree by which 16 lanes are summed, at every level.
inline float lane_sum(F x) {
  float v[16];
  fstore(v, x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) v[i] = v[i] + v[i + width];
  return v[0];
}
inline float lane_max(F x) {
  float v[16];
  fstore(v, x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) v[i] = v[i] > v[i + width] ? v[i] : v[i + width];
  return v[0];
}

inline F fload_first(const float* p, int count, float rest) {  // reads no more than `count` floats
  if (count >= 16) return fload(p);
  float v[16];
  for (int i = 0; i < 16; ++i) v[i] = i < count ? p[i] : rest;
  return fload(v);
}
inline void fstore_first(float* p, F x, int count) {
  if (count >= 16) return fstore(p, x);
  float v[16];
  fstore(v, x);
  for (int i = 0; i < count; ++i) p[i] = v[i];
}

// exp(x): 2^n times a polynomial of degree 6 in r = x - n ln 2, |r| <= 0.347 (Cody and Waite 1980);
// relative error below 3e-7. 0 below -87.7, capped above 88, NaN stays NaN.
inline F fexp(F x) {
  x = fmax2(fset(-88.0f), x);  // keeps NaN: the second operand wins
  x = fsub(fset(0.0f), fmax2(fset(-88.0f), fsub(fset(0.0f), x)));
  const I n = ftoi(fmul(x, fset(1.44269504088896341f)));
  const F fn = itof(n);
  F r = fnma(fn, fset(0.693359375f), x);
  r = fnma(fn, fset(-2.12194440e-4f), r);
  F p = fset(1.0f / 720);
  p = ffma(p, r, fset(1.0f / 120));
  p = ffma(p, r, fset(1.0f / 24));
  p = ffma(p, r, fset(1.0f / 6));
  p = ffma(p, r, fset(0.5f));
  p = ffma(p, r, fset(1.0f));
  p = ffma(p, r, fset(1.0f));
  const F scale = ffrombits(ishl23(iadd(n, iset(127))));
  return fmul(p, scale);  // n = -127 makes the scale 0: what would be below 2^-126 is 0
}

// Calls body(i, lanes) for every 16 of n values. All but the last have 16 lanes, and the compiler
// knows it, so that nothing is left of fload_first() there.
template <class Body>
inline void every_16(int n, const Body& body) {
  int i = 0;
  for (; i + 16 <= n; i += 16) body(i, 16);
  if (i < n) body(i, n - i);
}

inline float exp_one(float x) {
  float v[16];
  fstore(v, fexp(fset(x)));
  return v[0];
}

void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  F sum = fset(0.0f);
  every_16(n, [&](int i, int lanes) {
    const F v = fload_first(x + i, lanes, 0.0f);
    sum = ffma(v, v, sum);
  });
  const float mean = lane_sum(sum) / float(n);
  const F scale = fset(1.0f / __builtin_sqrtf(mean + eps));
  every_16(n, [&](int i, int lanes) {
    F v = fmul(fload_first(x + i, lanes, 0.0f), scale);
    if (weight != nullptr) v = fmul(v, fload_first(weight + i, lanes, 0.0f));
    fstore_first(out + i, v, lanes);
  });
}

inline int32_t negated_pair(int32_t low, int32_t high) {  // as two int16
  return int32_t(uint32_t(uint16_t(-low)) | uint32_t(uint16_t(-high)) << 16);
}

void quantize(const float* x, int begin, int end, int8_t* q, float* scale, float* sum32,
              float* sum16, int32_t* pairs32, int32_t* pairs16) {
  const I magnitude_bits = iset(0x7fffffff);
  for (int k = begin; k < end; k += 32) {
    const F x0 = fload(x + k), x1 = fload(x + k + 16);
    // As integers the bits of |x| order like the numbers, with infinity and NaN on top: a bad
    // value makes the scale infinite or NaN and so reaches the output.
    const I top = imax(iand(fbits(x0), magnitude_bits), iand(fbits(x1), magnitude_bits));
    const int32_t most = imost(top);
    float amax;
    __builtin_memcpy(&amax, &most, 4);
    const float step = amax / 127.0f;
    const float inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    const I lo = iset(-127), hi = iset(127);
    const I q0 = imax(imin(ftoi(fmul(x0, fset(inverse))), hi), lo);
    const I q1 = imax(imin(ftoi(fmul(x1, fset(inverse))), hi), lo);
    istore_i8(q + k, q0);
    istore_i8(q + k + 16, q1);
    int32_t sums[4];  // k % 4 in {0, 1} and in {2, 3}, of the first 16 and of the others
    ipair_sums(q0, q1, sums);
    pairs16[k / 16] = negated_pair(sums[0], sums[1]);
    pairs16[k / 16 + 1] = negated_pair(sums[2], sums[3]);
    pairs32[k / 32] = negated_pair(sums[0] + sums[2], sums[1] + sums[3]);
    const int32_t half0 = sums[0] + sums[1], half1 = sums[2] + sums[3];
    sum16[k / 16] = step * float(half0);
    sum16[k / 16 + 1] = step * float(half1);
    sum32[k / 32] = step * float(half0 + half1);
    scale[k / 32] = step;
  }
}

void silu_mul(const float* gate, const float* up, int n, float* out) {
  every_16(n, [&](int i, int lanes) {
    const F g = fload_first(gate + i, lanes, 0.0f), u = fload_first(up + i, lanes, 0.0f);
    const F sigmoid = fdiv(fset(1.0f), fadd(fset(1.0f), fexp(fsub(fset(0.0f), g))));
    fstore_first(out + i, fmul(fmul(g, sigmoid), u), lanes);
  });
}

inline F ftanh(F x) {  // 1 - 2 / (1 + exp(2 x))
  return fsub(fset(1.0f), fdiv(fset(2.0f), fadd(fset(1.0f), fexp(fadd(x, x)))));
}

void gelu_mul(const float* gate, const float* up, int n, float* out) {  // the tanh approximation
  every_16(n, [&](int i, int lanes) {
    const F g = fload_first(gate + i, lanes, 0.0f), u = fload_first(up + i, lanes, 0.0f);
    const F inner = fmul(fset(0.7978845608f), ffma(fmul(fset(0.044715f), fmul(g, g)), g, g));
    const F half = fmul(fmul(fset(0.5f), g), fadd(fset(1.0f), ftanh(inner)));
    fstore_first(out + i, fmul(half, u), lanes);
  });
}

float sum_exp(const float* x, int n, float offset) {
  F sum = fset(0.0f);
  every_16(n, [&](int i, int lanes) {
    const F e = fexp(fsub(fload_first(x + i, lanes, offset), fset(offset)));
    sum = fadd(sum, lanes < 16 ? ffirst(e, lanes, 0.0f) : e);
  });
  return lane_sum(sum);
}

void scale_add(float* out, float a, const float* x, float b, int n) {
  every_16(n, [&](int i, int lanes) {
    const F v = fmul(fload_first(out + i, lanes, 0.0f), fset(a));
    fstore_first(out + i, ffma(fload_first(x + i, lanes, 0.0f), fset(b), v), lanes);
  });
}

uint64_t read_bytes(const uint8_t* p, size_t bytes) {
  B sum = bload(p);
  for (size_t i = 64; i < bytes; i += 64) sum = bor(sum, bload(p + i));
  uint64_t word;
  __builtin_memcpy(&word, &sum, 8);
  return word;
}

}  // namespace divine::DIVINE_LEVEL
