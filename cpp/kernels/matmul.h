// Matrix tiles: one group of 16 outputs times 1..6 rows, for every format, over the SIMD
// vocabulary.
//
// Each output is one lane and each row has its own chain of additions over k, so a row's result
// does not depend on the tile it is in. Products are exact integers inside a block; floats follow
// in one order: per 32 k, sum += float(integer sum) * activation scale; per superblock, total +=
// sum * d.
//
// Units of Q3_K to Q6_K have two shapes: as they lie in memory, and opened, with what takes long to
// decode already decoded. Up to six rows take the first, more rows share the second.
#pragma once

namespace divine::DIVINE_LEVEL {

template <int BITS, int STEP>
inline B code(const uint8_t* p) {  // the codes of step STEP (0..7) of 32 k
  if constexpr (BITS == 8) {
    return bload(p + 64 * STEP);
  } else if constexpr (BITS == 4) {
    return bshift_and<(STEP % 2) * 4>(bload(p + 64 * (STEP / 2)), 15);
  } else if constexpr (BITS == 2) {
    return bshift_and<2 * (STEP % 4)>(bload(p + 64 * (STEP / 4)), 3);
  } else if constexpr (BITS == 3) {
    return bor(code<2, STEP>(p), bshift_and<STEP - 2>(bload(p + 128), 4));
  } else if constexpr (BITS == 5) {
    return bor(code<4, STEP>(p), bshift_and<STEP - 4>(bload(p + 256), 16));
  } else {
    static_assert(BITS == 6);
    return bor(code<4, STEP>(p),
               bshift_and<2 * (STEP % 4) - 4>(bload(p + 256 + 64 * (STEP / 4)), 48));
  }
}

// Always the same number of lines, so that the loop is foreseen; now and then one is asked for
// twice.
inline void fetch_ahead(Prefetch& f) {
  const int lines = (f.step + 63) / 64;
  if (f.far) {
    for (int i = 0; i < lines; ++i) prefetch_far(f.next + 64 * i);
  } else {
    for (int i = 0; i < lines; ++i) prefetch(f.next + 64 * i);
  }
  f.next += f.step;
}

template <int BITS, int FIRST, int LAST, int R, const int8_t* TABLE = nullptr>
inline void dot_steps(const uint8_t* p, const int8_t* const* q, int k, Acc* acc) {
  if constexpr (FIRST < LAST) {
    B w = code<BITS, FIRST>(p);
    if constexpr (TABLE != nullptr) w = blookup(TABLE, w);
    for (int r = 0; r < R; ++r) acc[r] = adot(acc[r], w, abcast(q[r] + k + 4 * FIRST));
    dot_steps<BITS, FIRST + 1, LAST, R, TABLE>(p, q, k, acc);
  }
}

template <int BITS, int FIRST, int LAST, int R, const int8_t* TABLE>
inline void dot_signed_steps(const uint8_t* p, const int8_t* const* q, int k, I* acc) {
  if constexpr (FIRST < LAST) {
    B w = code<BITS, FIRST>(p);
    if constexpr (TABLE != nullptr) w = blookup(TABLE, w);
    const SignedCodes s = bsigned(w);
    for (int r = 0; r < R; ++r) acc[r] = idot(acc[r], s, abcast(q[r] + k + 4 * FIRST));
    dot_signed_steps<BITS, FIRST + 1, LAST, R, TABLE>(p, q, k, acc);
  }
}

template <int R>
struct Rows {
  const int8_t* q[R];
  explicit Rows(const Activation* a) {
    for (int r = 0; r < R; ++r) q[r] = a[r].q;
  }
};

// Writes the codes of 32 k a byte each, as dot_steps<8> reads them.
template <int BITS, int STEP = 0>
inline void open_codes(const uint8_t* p, uint8_t* to) {
  if constexpr (STEP < 8) {
    bstore(to + 64 * STEP, code<BITS, STEP>(p));
    open_codes<BITS, STEP + 1>(p, to);
  }
}

// Q4_K and Q5_K: w = d * scale * code - dmin * min; scale and min are 6 bits per 32.
template <int BITS>
struct KMin {
  static constexpr int code_bits = BITS;
  const uint8_t* w;
  const uint8_t* codes(int j) const { return w + j * codes32_bytes(BITS); }
  S scale(int j, F& min) const {
    constexpr int low = BITS == 4 ? kQ4K_Low : kQ5K_Low, high = BITS == 4 ? kQ4K_High : kQ5K_High;
    const X nibbles = xload(w + low + 16 * j);
    X rest = xload(w + high + 16 * (j / 2));
    if (j % 2) rest = xshr<4>(rest);
    min = itof(xwiden_u8(xor_(xshr<4>(nibbles), xshl<2>(xand(rest, 12)))));
    return sscale(xor_(xand(nibbles, 15), xshl<4>(xand(rest, 3))));
  }
  F d() const { return fload_f16(reinterpret_cast<const uint16_t*>(w + at)); }
  F dmin() const { return fload_f16(reinterpret_cast<const uint16_t*>(w + at + 32)); }
  static constexpr int at = BITS == 4 ? kQ4K_D : kQ5K_D;
};

// Only the scales are opened: codes of 4 bits are had as quickly as bytes.
template <int BITS>
struct OpenKMin {
  static constexpr int code_bits = BITS;
  const uint8_t* w_;
  S scales[8];
  F mins[8], d_, dmin_;
  void open(const uint8_t* w) {
    const KMin<BITS> packed{w};
    w_ = w;
    for (int j = 0; j < 8; ++j) scales[j] = packed.scale(j, mins[j]);
    d_ = packed.d(), dmin_ = packed.dmin();
  }
  const uint8_t* codes(int j) const { return w_ + j * codes32_bytes(BITS); }
  S scale(int j, F& min) const { return min = mins[j], scales[j]; }
  F d() const { return d_; }
  F dmin() const { return dmin_; }

  template <int R>
  void add(int u, const Activation* a, F* total, Prefetch& fetch) const {
    add_k_min<BITS, R>(*this, u, a, total, fetch);
  }
};

template <int BITS, int R, class Unit>
inline void add_k_min(const Unit& unit, int u, const Activation* a, F* total, Prefetch& fetch) {
  constexpr int bits = Unit::code_bits;
  const Rows<R> rows(a);
  // Sums of products and minima of the superblock are kept until its end: added up one 32 after
  // another, they would not leave the registers to the products.
  I dot[8][R];
  F min[8];
  for (int j = 0; j < 8; ++j) {
    fetch_ahead(fetch);
    const int k = 256 * u + 32 * j;
    const uint8_t* p = unit.codes(j);
    const S scale = unit.scale(j, min[j]);
    Acc acc[R];
    for (int r = 0; r < R; ++r) acc[r] = azero();
    if constexpr (BITS == 4) {
      dot_steps<bits, 0, 8, R>(p, rows.q, k, acc);
      for (int r = 0; r < R; ++r) dot[j][r] = awiden(acc[r], scale);
    } else {
      dot_steps<bits, 0, 4, R>(p, rows.q, k, acc);
      for (int r = 0; r < R; ++r) dot[j][r] = awiden(acc[r], scale), acc[r] = azero();
      dot_steps<bits, 4, 8, R>(p, rows.q, k, acc);
      for (int r = 0; r < R; ++r) dot[j][r] = iadd(dot[j][r], awiden(acc[r], scale));
    }
  }
  F sum[R], sum_min[R];
  for (int r = 0; r < R; ++r) sum[r] = sum_min[r] = fset(0.0f);
  for (int j = 0; j < 8; ++j)
    for (int r = 0; r < R; ++r) sum[r] = ffma(itof(dot[j][r]), fset(a[r].scale[8 * u + j]), sum[r]);
  for (int j = 0; j < 8; ++j)
    for (int r = 0; r < R; ++r) sum_min[r] = ffma(min[j], fset(a[r].sum32[8 * u + j]), sum_min[r]);
  const F d = unit.d(), dmin = unit.dmin();
  for (int r = 0; r < R; ++r) total[r] = fnma(sum_min[r], dmin, ffma(sum[r], d, total[r]));
}

template <int BITS, int R>
void tile_k_min(const uint8_t* w, int units, const Activation* a, float (*out)[16],
                Prefetch fetch) {
  F total[R];
  for (int r = 0; r < R; ++r) total[r] = fset(0.0f);
  for (int u = 0; u < units; ++u, w += unit_bytes(BITS == 4 ? Format::Q4_K : Format::Q5_K))
    add_k_min<BITS, R>(KMin<BITS>{w}, u, a, total, fetch);
  for (int r = 0; r < R; ++r) fstore(out[r], total[r]);
}

// Q6_K and Q3_K: w = d * scale * (code - OFFSET); scale is signed, per 16.
template <int BITS>
struct KOffset {
  static constexpr int code_bits = BITS;
  const uint8_t* w;
  const uint8_t* codes(int j) const { return w + j * codes32_bytes(BITS); }
  S scale(int j, int half) const {
    if constexpr (BITS == 6) return sscale(xload(w + kQ6K_Scale + 32 * j + 16 * half));
    X nibbles = xload(w + kQ3K_Low + 16 * j), rest = xload(w + kQ3K_High + 16 * (j / 2));
    if (j % 2) rest = xshr<4>(rest);
    if (half) nibbles = xshr<4>(nibbles), rest = xshr<2>(rest);
    return sscale(xsub(xor_(xand(nibbles, 15), xshl<4>(xand(rest, 3))), 32));
  }
  F d() const {
    return fload_f16(reinterpret_cast<const uint16_t*>(w + (BITS == 6 ? kQ6K_D : kQ3K_D)));
  }
};

template <int BITS>
struct OpenKOffset {
  static constexpr int code_bits = 8;
  alignas(64) uint8_t bytes[8][codes32_bytes(8)];
  S scales[8][2];
  F d_;
  void open(const uint8_t* w) {
    const KOffset<BITS> packed{w};
    for (int j = 0; j < 8; ++j) {
      open_codes<BITS>(packed.codes(j), bytes[j]);
      for (int half = 0; half < 2; ++half) scales[j][half] = packed.scale(j, half);
    }
    d_ = packed.d();
  }
  const uint8_t* codes(int j) const { return bytes[j]; }
  S scale(int j, int half) const { return scales[j][half]; }
  F d() const { return d_; }

  template <int R>
  void add(int u, const Activation* a, F* total, Prefetch& fetch) const {
    add_k_offset<BITS, R>(*this, u, a, total, fetch);
  }
};

template <int BITS, int R, class Unit>
inline void add_k_offset(const Unit& unit, int u, const Activation* a, F* total, Prefetch& fetch) {
  constexpr int bits = Unit::code_bits, offset = 1 << (BITS - 1);
  const Rows<R> rows(a);
  F sum[R];
  for (int r = 0; r < R; ++r) sum[r] = fset(0.0f);
  for (int j = 0; j < 8; ++j) {
    fetch_ahead(fetch);
    const int b = 8 * u + j;
    const uint8_t* p = unit.codes(j);
    const S scale[2] = {unit.scale(j, 0), unit.scale(j, 1)};
    I dot[R];
    Acc acc[R];
    for (int r = 0; r < R; ++r) acc[r] = aoffset<offset>(a[r].pairs16 + 2 * b);
    dot_steps<bits, 0, 4, R>(p, rows.q, 32 * b, acc);
    for (int r = 0; r < R; ++r) {
      dot[r] = awiden(acc[r], scale[0]);
      acc[r] = aoffset<offset>(a[r].pairs16 + 2 * b + 1);
    }
    dot_steps<bits, 4, 8, R>(p, rows.q, 32 * b, acc);
    for (int r = 0; r < R; ++r) {
      dot[r] = iadd(dot[r], awiden(acc[r], scale[1]));
      sum[r] = ffma(itof(dot[r]), fset(a[r].scale[b]), sum[r]);
    }
  }
  const F d = unit.d();
  for (int r = 0; r < R; ++r) total[r] = ffma(sum[r], d, total[r]);
}

template <int BITS, int R>
void tile_k_offset(const uint8_t* w, int units, const Activation* a, float (*out)[16],
                   Prefetch fetch) {
  F total[R];
  for (int r = 0; r < R; ++r) total[r] = fset(0.0f);
  for (int u = 0; u < units; ++u, w += unit_bytes(BITS == 6 ? Format::Q6_K : Format::Q3_K))
    add_k_offset<BITS, R>(KOffset<BITS>{w}, u, a, total, fetch);
  for (int r = 0; r < R; ++r) fstore(out[r], total[r]);
}

// Q2_K: w = d * scale * code - dmin * min; scale and min are 4 bits per 16.
template <int R>
void tile_q2_k(const uint8_t* w, int units, const Activation* a, float (*out)[16], Prefetch fetch) {
  const Rows<R> rows(a);
  F total[R];
  for (int r = 0; r < R; ++r) total[r] = fset(0.0f);
  for (int u = 0; u < units; ++u, w += unit_bytes(Format::Q2_K)) {
    F sum[R], sum_min[R];
    for (int r = 0; r < R; ++r) sum[r] = sum_min[r] = fset(0.0f);
    for (int j = 0; j < 8; ++j) {
      fetch_ahead(fetch);
      const int b = 8 * u + j;
      const uint8_t* p = w + j * codes32_bytes(2);
      const X s0 = xload(w + kQ2K_Scale + 32 * j), s1 = xload(w + kQ2K_Scale + 32 * j + 16);
      const F min0 = itof(xwiden_u8(xshr<4>(s0))), min1 = itof(xwiden_u8(xshr<4>(s1)));
      I dot[R];
      Acc acc[R];
      for (int r = 0; r < R; ++r) acc[r] = azero();
      dot_steps<2, 0, 4, R>(p, rows.q, 32 * b, acc);
      for (int r = 0; r < R; ++r) dot[r] = awiden(acc[r], sscale(xand(s0, 15))), acc[r] = azero();
      dot_steps<2, 4, 8, R>(p, rows.q, 32 * b, acc);
      for (int r = 0; r < R; ++r) {
        dot[r] = iadd(dot[r], awiden(acc[r], sscale(xand(s1, 15))));
        sum[r] = ffma(itof(dot[r]), fset(a[r].scale[b]), sum[r]);
        sum_min[r] = ffma(min0, fset(a[r].sum16[2 * b]), sum_min[r]);
        sum_min[r] = ffma(min1, fset(a[r].sum16[2 * b + 1]), sum_min[r]);
      }
    }
    const F d = fload_f16(reinterpret_cast<const uint16_t*>(w + kQ2K_D));
    const F dmin = fload_f16(reinterpret_cast<const uint16_t*>(w + kQ2K_D + 32));
    for (int r = 0; r < R; ++r) total[r] = fnma(sum_min[r], dmin, ffma(sum[r], d, total[r]));
  }
  for (int r = 0; r < R; ++r) fstore(out[r], total[r]);
}

// IQ4_XS: w = d * scale * value(code); scale is signed 6 bits per 32.
template <int R>
void tile_iq4_xs(const uint8_t* w, int units, const Activation* a, float (*out)[16],
                 Prefetch fetch) {
  const Rows<R> rows(a);
  F total[R];
  for (int r = 0; r < R; ++r) total[r] = fset(0.0f);
  for (int u = 0; u < units; ++u, w += unit_bytes(Format::IQ4_XS)) {
    F sum[R];
    for (int r = 0; r < R; ++r) sum[r] = fset(0.0f);
    for (int j = 0; j < 8; ++j) {
      fetch_ahead(fetch);
      const int b = 8 * u + j;
      X nibbles = xload(w + kIQ4XS_Low + 16 * (j / 2)),
        rest = xload(w + kIQ4XS_High + 16 * (j / 4));
      if (j % 2) nibbles = xshr<4>(nibbles);
      rest = j % 4 == 0   ? rest
             : j % 4 == 1 ? xshr<2>(rest)
             : j % 4 == 2 ? xshr<4>(rest)
                          : xshr<6>(rest);
      const F scale = itof(xwiden_i8(xsub(xor_(xand(nibbles, 15), xshl<4>(xand(rest, 3))), 32)));
      I dot[R];
      for (int r = 0; r < R; ++r) dot[r] = iset(0);
      dot_signed_steps<4, 0, 8, R, kIQ4Values>(w + j * codes32_bytes(4), rows.q, 32 * b, dot);
      for (int r = 0; r < R; ++r)
        sum[r] = ffma(fmul(itof(dot[r]), scale), fset(a[r].scale[b]), sum[r]);
    }
    const F d = fload_f16(reinterpret_cast<const uint16_t*>(w + kIQ4XS_D));
    for (int r = 0; r < R; ++r) total[r] = ffma(sum[r], d, total[r]);
  }
  for (int r = 0; r < R; ++r) fstore(out[r], total[r]);
}

inline F mxfp4_scale(const uint8_t* e) {  // half of 2^(e - 127), exact also where it is subnormal
  float d[16];
  for (int i = 0; i < 16; ++i)
    d[i] = bits_to_float(e[i] < 2 ? 0x00200000u << e[i] : uint32_t(e[i] - 1) << 23);
  return fload(d);
}

// Formats with a float scale per 32: w = d * (code - offset), or d * code + m.
template <Format FMT, int R>
void tile_32(const uint8_t* w, int units, const Activation* a, float (*out)[16], Prefetch fetch) {
  constexpr int bits = info(FMT).code_bits, codes = codes32_bytes(bits);
  constexpr bool is_signed = FMT == Format::Q8_0 || FMT == Format::IQ4_NL;
  constexpr bool has_min = FMT == Format::Q4_1 || FMT == Format::Q5_1;
  const Rows<R> rows(a);
  F total[R];
  for (int r = 0; r < R; ++r) total[r] = fset(0.0f);
  for (int b = 0; b < units; ++b, w += unit_bytes(FMT)) {
    fetch_ahead(fetch);
    I dot[R];
    if constexpr (is_signed) {
      constexpr const int8_t* table = FMT == Format::IQ4_NL ? kIQ4Values : nullptr;
      for (int r = 0; r < R; ++r) dot[r] = iset(0);
      dot_signed_steps<bits, 0, 8, R, table>(w, rows.q, 32 * b, dot);
    } else {
      Acc acc[R];
      for (int r = 0; r < R; ++r) {
        if constexpr (FMT == Format::Q4_0)
          acc[r] = aoffset<8>(a[r].pairs32 + b);
        else if constexpr (FMT == Format::Q5_0)
          acc[r] = aoffset<16>(a[r].pairs32 + b);
        else if constexpr (FMT == Format::MXFP4)
          acc[r] = aoffset<kMXFP4Offset>(a[r].pairs32 + b);
        else
          acc[r] = azero();
      }
      if constexpr (FMT == Format::Q5_1) {
        dot_steps<bits, 0, 4, R>(w, rows.q, 32 * b, acc);
        for (int r = 0; r < R; ++r) dot[r] = awiden(acc[r], sone()), acc[r] = azero();
        dot_steps<bits, 4, 8, R>(w, rows.q, 32 * b, acc);
        for (int r = 0; r < R; ++r) dot[r] = iadd(dot[r], awiden(acc[r], sone()));
      } else {
        constexpr const int8_t* table = FMT == Format::MXFP4 ? kMXFP4Values : nullptr;
        dot_steps<bits, 0, 8, R, table>(w, rows.q, 32 * b, acc);
        for (int r = 0; r < R; ++r) dot[r] = awiden(acc[r], sone());
      }
    }
    F d;
    if constexpr (FMT == Format::MXFP4)
      d = mxfp4_scale(w + codes);
    else
      d = fload_f16(reinterpret_cast<const uint16_t*>(w + codes));
    for (int r = 0; r < R; ++r)
      total[r] = ffma(fmul(itof(dot[r]), fset(a[r].scale[b])), d, total[r]);
    if constexpr (has_min) {
      const F m = fload_f16(reinterpret_cast<const uint16_t*>(w + codes + 32));
      for (int r = 0; r < R; ++r) total[r] = ffma(m, fset(a[r].sum32[b]), total[r]);
    }
  }
  for (int r = 0; r < R; ++r) fstore(out[r], total[r]);
}

// Float weights times float32 activations.
template <Format FMT, int R>
void tile_float(const uint8_t* w, int units, const Activation* a, float (*out)[16],
                Prefetch fetch) {
  F total[R];
  for (int r = 0; r < R; ++r) total[r] = fset(0.0f);
  for (int k = 0; k < units; ++k, w += unit_bytes(FMT)) {
    if (k % 32 == 0) fetch_ahead(fetch);
    F v;
    if constexpr (FMT == Format::F32)
      v = fload(reinterpret_cast<const float*>(w));
    else if constexpr (FMT == Format::F16)
      v = fload_f16(reinterpret_cast<const uint16_t*>(w));
    else
      v = fload_bf16(reinterpret_cast<const uint16_t*>(w));
    for (int r = 0; r < R; ++r) total[r] = ffma(v, fset(a[r].x[k]), total[r]);
  }
  for (int r = 0; r < R; ++r) fstore(out[r], total[r]);
}

// Many rows: each unit is opened once, then the rows take it in tiles.
template <Format FMT, class Open>
void many(const uint8_t* w, int units, const Activation* a, int rows, float (*out)[16],
          Prefetch fetch) {
  Open open;
  const auto add = [&]<int R>(int u, int first) {
    F total[R];
    for (int r = 0; r < R; ++r) total[r] = fload(out[first + r]);
    open.template add<R>(u, a + first, total, fetch);
    for (int r = 0; r < R; ++r) fstore(out[first + r], total[r]);
  };
  static_assert(kTileRows == 6 && kSeveralTiles == 5);  // so that tiles have 3, 4 or 5 rows
  const int tiles = tiles_of(rows);
  for (int r = 0; r < rows; ++r) fstore(out[r], fset(0.0f));
  for (int u = 0; u < units; ++u) {
    open.open(w + size_t(u) * unit_bytes(FMT));
    for (int t = 0, first = 0; t < tiles; ++t) {
      const int size = rows / tiles + (t < rows % tiles);
      if (size == 3) add.template operator()<3>(u, first);
      if (size == 4) add.template operator()<4>(u, first);
      if (size == 5) add.template operator()<5>(u, first);
      first += size;
    }
  }
}

template <Format FMT, int R>
constexpr TileFn tile_for() {
  if constexpr (FMT == Format::Q4_K)
    return tile_k_min<4, R>;
  else if constexpr (FMT == Format::Q5_K)
    return tile_k_min<5, R>;
  else if constexpr (FMT == Format::Q6_K)
    return tile_k_offset<6, R>;
  else if constexpr (FMT == Format::Q3_K)
    return tile_k_offset<3, R>;
  else if constexpr (FMT == Format::Q2_K)
    return tile_q2_k<R>;
  else if constexpr (FMT == Format::IQ4_XS)
    return tile_iq4_xs<R>;
  else if constexpr (info(FMT).code_bits == 0)
    return tile_float<FMT, R>;
  else
    return tile_32<FMT, R>;
}

// Null for formats whose tiles are as quick.
template <Format FMT>
constexpr ManyFn many_for() {
  if constexpr (FMT == Format::Q4_K)
    return many<FMT, OpenKMin<4>>;
  else if constexpr (FMT == Format::Q5_K)
    return many<FMT, OpenKMin<5>>;
  else if constexpr (FMT == Format::Q6_K)
    return many<FMT, OpenKOffset<6>>;
  else if constexpr (FMT == Format::Q3_K)
    return many<FMT, OpenKOffset<3>>;
  else
    return nullptr;
}

}  // namespace divine::DIVINE_LEVEL
