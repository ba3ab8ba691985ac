// Between the file's blocks and the interleaved layout (layout.h). Level-independent.
#pragma once
#include "layout.h"

namespace divine {

// Writes one group: 16 rows of in_dim weights; rows[i] is null for padding (all zero).
void repack_group(Format format, const uint8_t* const rows[kLanes], int in_dim, uint8_t* group);

// Copies one row from a group to another; what is copied is what the file's row holds.
void copy_row(Format format, int in_dim, const uint8_t* from, int from_lane, uint8_t* to,
              int to_lane);

// The float32 values of one row, as the GGUF reference decodes them, from the interleaved layout.
void dequantize_row(Format format, const uint8_t* group, int lane, int in_dim, float* out);

}  // namespace divine
