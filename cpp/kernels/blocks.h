// What a block of a file holds, in plain form: codes of one byte for each weight, and the scales
// that the file packs into six bits. Only the file's own layout is known here; ours is in
// repack.cpp.
#pragma once
#include <cstdint>

#include "layout.h"

namespace divine {

// Unsigned codes (as they are for Q8_0) of one block, in order of k.
void block_codes(Format f, const uint8_t* block, uint8_t* codes);

// Q4_K and Q5_K: eight 6-bit scales and eight minima in 12 bytes.
void file_scales_k4(const uint8_t* p, uint8_t* scale, uint8_t* min);

// Q3_K: sixteen 6-bit scales in 12 bytes; even ones and odd ones apart.
void file_scales_q3_k(const uint8_t* p, uint8_t* even, uint8_t* odd);

}  // namespace divine
