#include "repack.h"

#include <cstring>

#include "blocks.h"
#include "half.h"

namespace divine {
namespace {

// ---- codes to planes and back; `lane` is the row inside the group ----

template <int BITS>
void put_codes32(const uint8_t* codes, int lane, uint8_t* out) {
  uint32_t w[8];
  std::memcpy(w, codes, 32);
  uint32_t* o = reinterpret_cast<uint32_t*>(out) + lane;  // vectors are 16 words apart
  if constexpr (BITS == 8) {
    for (int s = 0; s < 8; ++s) o[16 * s] = w[s];
    return;
  }
  if constexpr (BITS >= 4)
    for (int v = 0; v < 4; ++v)
      o[16 * v] = (w[2 * v] & 0x0f0f0f0f) | (w[2 * v + 1] & 0x0f0f0f0f) << 4;
  if constexpr (BITS == 6 || BITS == 2 || BITS == 3) {
    constexpr int at = BITS == 6 ? 4 : 0, shift = BITS == 6 ? 4 : 0;
    for (int v = 0; v < 2; ++v) {
      uint32_t x = 0;
      for (int s = 0; s < 4; ++s) x |= (w[4 * v + s] >> shift & 0x03030303) << (2 * s);
      o[16 * (at + v)] = x;
    }
  }
  if constexpr (BITS == 5 || BITS == 3) {
    constexpr int at = BITS == 5 ? 4 : 2, shift = BITS == 5 ? 4 : 2;
    uint32_t x = 0;
    for (int s = 0; s < 8; ++s) x |= (w[s] >> shift & 0x01010101) << s;
    o[16 * at] = x;
  }
}

template <int BITS>
void get_codes32(const uint8_t* in, int lane, uint8_t* codes) {
  const uint32_t* o = reinterpret_cast<const uint32_t*>(in) + lane;
  uint32_t w[8] = {};
  for (int s = 0; s < 8; ++s) {
    if constexpr (BITS == 8) w[s] = o[16 * s];
    if constexpr (BITS == 4 || BITS == 5 || BITS == 6)
      w[s] = o[16 * (s / 2)] >> (4 * (s % 2)) & 0x0f0f0f0f;
    if constexpr (BITS == 6) w[s] |= (o[16 * (4 + s / 4)] >> (2 * (s % 4)) & 0x03030303) << 4;
    if constexpr (BITS == 2 || BITS == 3) w[s] = o[16 * (s / 4)] >> (2 * (s % 4)) & 0x03030303;
    if constexpr (BITS == 5) w[s] |= (o[16 * 4] >> s & 0x01010101) << 4;
    if constexpr (BITS == 3) w[s] |= (o[16 * 2] >> s & 0x01010101) << 2;
  }
  std::memcpy(codes, w, 32);
}

void put_codes(int bits, const uint8_t* codes, int lane, int blocks32, uint8_t* out) {
  for (int j = 0; j < blocks32; ++j, codes += 32, out += codes32_bytes(bits)) {
    switch (bits) {
      case 2:
        put_codes32<2>(codes, lane, out);
        break;
      case 3:
        put_codes32<3>(codes, lane, out);
        break;
      case 4:
        put_codes32<4>(codes, lane, out);
        break;
      case 5:
        put_codes32<5>(codes, lane, out);
        break;
      case 6:
        put_codes32<6>(codes, lane, out);
        break;
      default:
        put_codes32<8>(codes, lane, out);
        break;
    }
  }
}

void get_codes(int bits, const uint8_t* in, int lane, int blocks32, uint8_t* codes) {
  for (int j = 0; j < blocks32; ++j, codes += 32, in += codes32_bytes(bits)) {
    switch (bits) {
      case 2:
        get_codes32<2>(in, lane, codes);
        break;
      case 3:
        get_codes32<3>(in, lane, codes);
        break;
      case 4:
        get_codes32<4>(in, lane, codes);
        break;
      case 5:
        get_codes32<5>(in, lane, codes);
        break;
      case 6:
        get_codes32<6>(in, lane, codes);
        break;
      default:
        get_codes32<8>(in, lane, codes);
        break;
    }
  }
}

// ---- scales ----

void put_half(uint8_t* at, int lane, const uint8_t* source) {
  std::memcpy(at + 2 * lane, source, 2);
}
float get_half(const uint8_t* at, int lane) {
  uint16_t h;
  std::memcpy(&h, at + 2 * lane, 2);
  return half_to_float(h);
}

// Sixteen 6-bit values as pairs (first[j], second[j]): nibbles side by side, then the 2-bit rests.
void put_six_bits(const uint8_t* first, const uint8_t* second, int lane, uint8_t* low,
                  uint8_t* high) {
  for (int j = 0; j < 8; ++j) low[16 * j + lane] = uint8_t((first[j] & 15) | (second[j] & 15) << 4);
  for (int i = 0; i < 4; ++i)
    high[16 * i + lane] = uint8_t(first[2 * i] >> 4 | second[2 * i] >> 4 << 2 |
                                  first[2 * i + 1] >> 4 << 4 | second[2 * i + 1] >> 4 << 6);
}
void get_six_bits(const uint8_t* low, const uint8_t* high, int lane, uint8_t* first,
                  uint8_t* second) {
  for (int j = 0; j < 8; ++j) {
    const int n = low[16 * j + lane], rest = high[16 * (j / 2) + lane] >> (4 * (j % 2));
    first[j] = uint8_t((n & 15) | (rest & 3) << 4);
    second[j] = uint8_t(n >> 4 | (rest & 12) << 2);
  }
}

void put_scales(Format f, const uint8_t* p, int lane, uint8_t* unit) {
  const int codes = codes32_bytes(info(f).code_bits);
  uint8_t first[8], second[8];
  switch (f) {
    case Format::Q4_0:
    case Format::Q5_0:
    case Format::Q8_0:
    case Format::IQ4_NL:
      put_half(unit + codes, lane, p);
      break;
    case Format::Q4_1:
    case Format::Q5_1:
      put_half(unit + codes, lane, p);
      put_half(unit + codes + 32, lane, p + 2);
      break;
    case Format::MXFP4:
      unit[codes + lane] = p[0];
      break;
    case Format::Q4_K:
    case Format::Q5_K: {
      const bool q4 = f == Format::Q4_K;
      file_scales_k4(p + 4, first, second);
      put_six_bits(first, second, lane, unit + (q4 ? kQ4K_Low : kQ5K_Low),
                   unit + (q4 ? kQ4K_High : kQ5K_High));
      uint8_t* d = unit + (q4 ? kQ4K_D : kQ5K_D);
      put_half(d, lane, p);
      put_half(d + 32, lane, p + 2);
      break;
    }
    case Format::Q6_K:
      for (int j = 0; j < 16; ++j) unit[kQ6K_Scale + 16 * j + lane] = p[192 + j];
      put_half(unit + kQ6K_D, lane, p + 208);
      break;
    case Format::Q3_K:
      file_scales_q3_k(p + 96, first, second);
      put_six_bits(first, second, lane, unit + kQ3K_Low, unit + kQ3K_High);
      put_half(unit + kQ3K_D, lane, p + 108);
      break;
    case Format::Q2_K:
      for (int j = 0; j < 16; ++j) unit[kQ2K_Scale + 16 * j + lane] = p[j];
      put_half(unit + kQ2K_D, lane, p + 80);
      put_half(unit + kQ2K_D + 32, lane, p + 82);
      break;
    case Format::IQ4_XS:  // eight 6-bit scales: nibbles in pairs, 2-bit rests in fours
      for (int i = 0; i < 4; ++i) unit[kIQ4XS_Low + 16 * i + lane] = p[4 + i];
      for (int i = 0; i < 2; ++i) unit[kIQ4XS_High + 16 * i + lane] = p[2 + i];
      put_half(unit + kIQ4XS_D, lane, p);
      break;
    default:
      break;
  }
}

void repack_float(Format f, const uint8_t* const rows[kLanes], int in_dim, uint8_t* out) {
  const int size = info(f).block_bytes;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int k = 0; k < in_dim; ++k) {
      uint8_t* at = out + (size_t(k) * kLanes + lane) * size;
      if (rows[lane] == nullptr)
        std::memset(at, 0, size);
      else
        std::memcpy(at, rows[lane] + size_t(k) * size, size);
    }
}

void dequantize_float(Format f, const uint8_t* group, int lane, int in_dim, float* out) {
  for (int k = 0; k < in_dim; ++k) {
    const uint8_t* at = group + (size_t(k) * kLanes + lane) * info(f).block_bytes;
    if (f == Format::F32) {
      std::memcpy(out + k, at, 4);
    } else {
      uint16_t h;
      std::memcpy(&h, at, 2);
      out[k] = f == Format::F16 ? half_to_float(h) : bits_to_float(uint32_t(h) << 16);
    }
  }
}

void dequantize_unit(Format f, const uint8_t* u, int lane, float* out) {
  const int bits = info(f).code_bits, blocks32 = info(f).block / 32, at = codes32_bytes(bits);
  uint8_t q[256], first[8], second[8];
  get_codes(bits, u, lane, blocks32, q);
  switch (f) {
    case Format::Q4_0:
    case Format::Q5_0: {
      const float d = get_half(u + at, lane);
      for (int i = 0; i < 32; ++i) out[i] = d * float(q[i] - (1 << (bits - 1)));
      break;
    }
    case Format::Q4_1:
    case Format::Q5_1: {
      const float d = get_half(u + at, lane), m = get_half(u + at + 32, lane);
      for (int i = 0; i < 32; ++i) out[i] = d * float(q[i]) + m;
      break;
    }
    case Format::Q8_0: {
      const float d = get_half(u + at, lane);
      for (int i = 0; i < 32; ++i) out[i] = d * float(int8_t(q[i]));
      break;
    }
    case Format::IQ4_NL: {
      const float d = get_half(u + at, lane);
      for (int i = 0; i < 32; ++i) out[i] = d * float(kIQ4Values[q[i]]);
      break;
    }
    case Format::MXFP4: {
      const uint8_t e = u[at + lane];
      const float d = bits_to_float(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23);
      for (int i = 0; i < 32; ++i) out[i] = d * float(kMXFP4Values[q[i]] - kMXFP4Offset);
      break;
    }
    case Format::Q4_K:
    case Format::Q5_K: {
      const bool q4 = f == Format::Q4_K;
      get_six_bits(u + (q4 ? kQ4K_Low : kQ5K_Low), u + (q4 ? kQ4K_High : kQ5K_High), lane, first,
                   second);
      const uint8_t* dp = u + (q4 ? kQ4K_D : kQ5K_D);
      const float d = get_half(dp, lane), dmin = get_half(dp + 32, lane);
      for (int i = 0; i < 256; ++i)
        out[i] = d * float(first[i / 32]) * float(q[i]) - dmin * float(second[i / 32]);
      break;
    }
    case Format::Q6_K: {
      const float d = get_half(u + kQ6K_D, lane);
      for (int i = 0; i < 256; ++i)
        out[i] = d * float(int8_t(u[kQ6K_Scale + 16 * (i / 16) + lane])) * float(q[i] - 32);
      break;
    }
    case Format::Q3_K: {
      get_six_bits(u + kQ3K_Low, u + kQ3K_High, lane, first, second);
      const float d = get_half(u + kQ3K_D, lane);
      for (int i = 0; i < 256; ++i) {
        const int scale = (i / 16 % 2 ? second : first)[i / 32] - 32;
        out[i] = d * float(scale) * float(q[i] - 4);
      }
      break;
    }
    case Format::Q2_K: {
      const float d = get_half(u + kQ2K_D, lane), dmin = get_half(u + kQ2K_D + 32, lane);
      for (int i = 0; i < 256; ++i) {
        const int s = u[kQ2K_Scale + 16 * (i / 16) + lane];
        out[i] = d * float(s & 15) * float(q[i]) - dmin * float(s >> 4);
      }
      break;
    }
    case Format::IQ4_XS: {
      const float d = get_half(u + kIQ4XS_D, lane);
      for (int i = 0; i < 256; ++i) {
        const int j = i / 32;
        const int low = u[kIQ4XS_Low + 16 * (j / 2) + lane] >> (4 * (j % 2)) & 15;
        const int high = u[kIQ4XS_High + 16 * (j / 4) + lane] >> (2 * (j % 4)) & 3;
        out[i] = d * float((low | high << 4) - 32) * float(kIQ4Values[q[i]]);
      }
      break;
    }
    default:
      break;
  }
}

}  // namespace

void repack_group(Format format, const uint8_t* const rows[kLanes], int in_dim, uint8_t* group) {
  const FormatInfo& fi = info(format);
  if (fi.code_bits == 0) return repack_float(format, rows, in_dim, group);
  const int units = in_dim / fi.block;
  uint8_t codes[256];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int u = 0; u < units; ++u) {
      uint8_t* unit = group + size_t(u) * unit_bytes(format);
      static constexpr uint8_t zero[256] = {};
      const uint8_t* block = rows[lane] ? rows[lane] + size_t(u) * fi.block_bytes : zero;
      block_codes(format, block, codes);
      put_codes(fi.code_bits, codes, lane, fi.block / 32, unit);
      put_scales(format, block, lane, unit);
    }
  }
}

namespace {

// Lines of a unit behind its codes: one byte for each lane, and at the end two bytes.
int half_lines(Format f) {
  switch (f) {
    case Format::MXFP4:
      return 0;
    case Format::Q4_1:
    case Format::Q5_1:
    case Format::Q4_K:
    case Format::Q5_K:
    case Format::Q2_K:
      return 2;
    default:
      return 1;
  }
}

// `lines` lines of 16 elements, one for each lane.
void copy_lanes(const uint8_t* from, int from_lane, uint8_t* to, int to_lane, int lines, int size) {
  for (int i = 0; i < lines; ++i)
    std::memcpy(to + size_t(kLanes * i + to_lane) * size_t(size),
                from + size_t(kLanes * i + from_lane) * size_t(size), size_t(size));
}

}  // namespace

void copy_row(Format format, int in_dim, const uint8_t* from, int from_lane, uint8_t* to,
              int to_lane) {
  const FormatInfo& fi = info(format);
  if (fi.code_bits == 0) return copy_lanes(from, from_lane, to, to_lane, in_dim, fi.block_bytes);
  const int unit = int(unit_bytes(format)), codes = codes32_bytes(fi.code_bits) * (fi.block / 32);
  const int halves = half_lines(format), bytes = (unit - codes) / kLanes - 2 * halves;
  for (int u = 0; u < in_dim / fi.block; ++u, from += unit, to += unit) {
    copy_lanes(from, from_lane, to, to_lane, codes / (4 * kLanes), 4);
    copy_lanes(from + codes, from_lane, to + codes, to_lane, bytes, 1);
    const int at = codes + kLanes * bytes;
    copy_lanes(from + at, from_lane, to + at, to_lane, halves, 2);
  }
}

void dequantize_row(Format format, const uint8_t* group, int lane, int in_dim, float* out) {
  const FormatInfo& fi = info(format);
  if (fi.code_bits == 0) return dequantize_float(format, group, lane, in_dim, out);
  for (int u = 0; u < in_dim / fi.block; ++u)
    dequantize_unit(format, group + size_t(u) * unit_bytes(format), lane, out + u * fi.block);
}

}  // namespace divine
