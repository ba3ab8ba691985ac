// A weight matrix in the interleaved layout, wherever its bytes lie.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace divine {

struct Matrix {  // [out, in]
  Format format = Format::F32;
  int out = 0, in = 0, groups = 0;
  size_t group_bytes = 0;
  bool filled = false;
  const uint8_t* data = nullptr;
  bool quantized() const { return info(format).code_bits != 0; }
};

}  // namespace divine
