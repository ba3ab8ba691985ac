// Matrix products of a pass: groups of 16 outputs, handed out to threads, times all rows.
#include <algorithm>

#include "pass.h"
#include "pass_tiles.h"

namespace divine {
void Pass::matrices(const LinearOp& op, const Activations& a, const std::vector<MatrixUnit>& units,
                    int thread) {
  for (int u; (u = take(thread, int(units.size()))) >= 0;) {
    const MatrixUnit& unit = units[u];
    const PartSpec& part = op.parts[unit.part];
    const Matrix& m = ex_.matrices_[part.matrix];
    const float* bias = part.bias >= 0 ? ex_.vectors_[part.bias].data() : nullptr;
    for (int g = unit.begin; g < unit.end; ++g) {
      group_times_rows(m, g, a.rows.data(), in_->rows, [&](int r, const float* v) {
        float* to = row(part.out, r) + 16 * g;
        const float* residual = op.residual >= 0 ? row(op.residual, r) + 16 * g : nullptr;
        for (int i = 0; i < 16; ++i) {
          float y = v[i];
          if (bias != nullptr) y = y + bias[16 * g + i];
          if (residual != nullptr) y = residual[i] + y;
          to[i] = y;
        }
      });
    }
  }
}

void Pass::gated(const GatedMlpOp& op, const Activations& a, bool quantize, int thread) {
  const Matrix &gate = ex_.matrices_[op.gate], &up = ex_.matrices_[op.up];
  const auto combine = op.gelu ? k_.gelu_mul : k_.silu_mul;
  const int pairs = (gate.groups + 1) / 2;  // 32 outputs: one block of the next product's input
  for (int p; (p = take(thread, pairs)) >= 0;) {
    for (int g = 2 * p; g < std::min(2 * p + 2, gate.groups); ++g) {
      group_times_rows(gate, g, a.rows.data(), in_->rows, [&](int r, const float* v) {
        std::copy(v, v + 16, row(op.out, r) + 16 * g);
      });
      group_times_rows(up, g, a.rows.data(), in_->rows, [&](int r, const float* v) {
        float* h = row(op.out, r) + 16 * g;
        combine(h, v, 16, h);
      });
    }
    for (int r = 0; quantize && r < in_->rows; ++r)
      quantize_range(row(op.out, r), 32 * p, 32 * p + 32, hidden_.rows[size_t(r)]);
  }
}

}  // namespace divine
