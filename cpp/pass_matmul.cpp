// Matrix products of a pass: groups of 16 outputs, handed out to threads, times all rows.
#include <algorithm>
#include <cstring>

#include "pass.h"
#include "pass_tiles.h"

namespace divine {
namespace {

// Sixteen outputs of one row, and what is added to them.
void put(float* to, const float* v, const float* bias, const float* residual) {
  float y[kLanes];
  std::memcpy(y, v, sizeof y);
  for (int i = 0; bias != nullptr && i < kLanes; ++i) y[i] = y[i] + bias[i];
  for (int i = 0; residual != nullptr && i < kLanes; ++i) y[i] = residual[i] + y[i];
  std::memcpy(to, y, sizeof y);
}

}  // namespace

void Pass::matrices(const LinearOp& op, const Activations& a, const std::vector<MatrixUnit>& units,
                    int thread) {
  static constexpr float kOnes[kLanes] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const auto activate = op.activation == Activate::Gelu ? k_.gelu_mul : k_.silu_mul;
  for (int u; (u = take(thread, int(units.size()))) >= 0;) {
    const MatrixUnit& unit = units[u];
    const PartSpec& part = op.parts[unit.part];
    const Matrix& m = ex_.matrices_[part.matrix];
    const float* bias = part.bias >= 0 ? ex_.vectors_[part.bias].data() : nullptr;
    for (int g = unit.begin; g < unit.end; ++g) {
      const int at = kLanes * g;
      group_times_rows(m, g, a.rows.data(), in_->rows, [&](int r, const float* v) {
        float* to = row(part.out, r) + at;
        put(to, v, bias != nullptr ? bias + at : nullptr,
            op.residual >= 0 ? row(op.residual, r) + at : nullptr);
        if (op.activation != Activate::None) activate(to, kOnes, kLanes, to);
      });
    }
  }
}

void Pass::gated(const GatedMlpOp& op, const Activations& a, const Activations* next, int thread) {
  const Matrix &gate = ex_.matrices_[op.gate], &up = ex_.matrices_[op.up];
  const auto combine = op.gelu ? k_.gelu_mul : k_.silu_mul;
  const int pairs = (gate.groups + 1) / 2;
  float* ups = outputs_[size_t(thread)].data();
  for (int p; (p = take(thread, pairs)) >= 0;) {
    const int begin = kPairOutputs * p;
    const int end = std::min(2 * p + 2, gate.groups);
    for (int g = 2 * p; g < end; ++g) {
      const int at = kLanes * g;
      group_times_rows(gate, g, a.rows.data(), in_->rows, [&](int r, const float* v) {
        std::memcpy(row(op.out, r) + at, v, kLanes * sizeof(float));
      });
      group_times_rows(up, g, a.rows.data(), in_->rows, [&](int r, const float* v) {
        std::memcpy(ups + r * kPairOutputs + at - begin, v, kLanes * sizeof(float));
      });
    }
    for (int r = 0; r < in_->rows; ++r) {
      float* h = row(op.out, r);
      combine(h + begin, ups + r * kPairOutputs, kLanes * end - begin, h + begin);
      if (next != nullptr) quantize_range(h, begin, begin + kPairOutputs, next->rows[size_t(r)]);
    }
  }
}

}  // namespace divine
