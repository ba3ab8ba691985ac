#include "blocks.h"

#include <cstring>

namespace divine {
namespace {

uint32_t load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

void split_nibbles(const uint8_t* q, int half, uint8_t* codes) {  // low nibbles first, then high
  for (int i = 0; i < half; ++i) {
    codes[i] = q[i] & 15;
    codes[i + half] = q[i] >> 4;
  }
}

void add_fifth_bits(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= uint8_t((bits >> i & 1) << 4);
}

void codes_q4_k(const uint8_t* q, uint8_t* codes) {
  for (int c = 0; c < 4; ++c) split_nibbles(q + 32 * c, 32, codes + 64 * c);
}

void codes_q5_k(const uint8_t* qh, const uint8_t* q, uint8_t* codes) {
  codes_q4_k(q, codes);
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 32; ++i) codes[32 * j + i] |= uint8_t((qh[i] >> j & 1) << 4);
}

void codes_q6_k(const uint8_t* ql, const uint8_t* qh, uint8_t* codes) {
  for (int h = 0; h < 2; ++h, ql += 64, qh += 32, codes += 128) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = uint8_t((ql[i] & 15) | (qh[i] & 3) << 4);
      codes[i + 32] = uint8_t((ql[i + 32] & 15) | (qh[i] >> 2 & 3) << 4);
      codes[i + 64] = uint8_t(ql[i] >> 4 | (qh[i] >> 4 & 3) << 4);
      codes[i + 96] = uint8_t(ql[i + 32] >> 4 | (qh[i] >> 6) << 4);
    }
  }
}

void codes_q2_k(const uint8_t* q, uint8_t* codes) {
  for (int h = 0; h < 2; ++h, q += 32)
    for (int j = 0; j < 4; ++j, codes += 32)
      for (int i = 0; i < 32; ++i) codes[i] = q[i] >> (2 * j) & 3;
}

void codes_q3_k(const uint8_t* hmask, const uint8_t* q, uint8_t* codes) {
  codes_q2_k(q, codes);
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 32; ++i) codes[32 * j + i] |= uint8_t((hmask[i] >> j & 1) << 2);
}

}  // namespace

void block_codes(Format f, const uint8_t* p, uint8_t* codes) {
  switch (f) {
    case Format::Q4_0:
    case Format::IQ4_NL:
      split_nibbles(p + 2, 16, codes);
      break;
    case Format::Q4_1:
      split_nibbles(p + 4, 16, codes);
      break;
    case Format::Q5_0:
      split_nibbles(p + 6, 16, codes), add_fifth_bits(load32(p + 2), codes);
      break;
    case Format::Q5_1:
      split_nibbles(p + 8, 16, codes), add_fifth_bits(load32(p + 4), codes);
      break;
    case Format::MXFP4:
      split_nibbles(p + 1, 16, codes);
      break;
    case Format::Q8_0:
      std::memcpy(codes, p + 2, 32);
      break;
    case Format::Q2_K:
      codes_q2_k(p + 16, codes);
      break;
    case Format::Q3_K:
      codes_q3_k(p, p + 32, codes);
      break;
    case Format::Q4_K:
      codes_q4_k(p + 16, codes);
      break;
    case Format::Q5_K:
      codes_q5_k(p + 16, p + 48, codes);
      break;
    case Format::Q6_K:
      codes_q6_k(p, p + 128, codes);
      break;
    case Format::IQ4_XS:
      for (int j = 0; j < 8; ++j) split_nibbles(p + 8 + 16 * j, 16, codes + 32 * j);
      break;
    default:
      break;
  }
}

void file_scales_k4(const uint8_t* p, uint8_t* scale, uint8_t* min) {
  for (int j = 0; j < 4; ++j) {
    scale[j] = p[j] & 63;
    min[j] = p[j + 4] & 63;
    scale[j + 4] = uint8_t((p[j + 8] & 15) | (p[j] >> 6) << 4);
    min[j + 4] = uint8_t(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
  }
}

void file_scales_q3_k(const uint8_t* p, uint8_t* even, uint8_t* odd) {
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? p[j] & 15 : p[j - 8] >> 4;
    const int high = p[8 + j % 4] >> (2 * (j / 4)) & 3;
    (j % 2 ? odd : even)[j / 2] = uint8_t(low | high << 4);
  }
}

}  // namespace divine
