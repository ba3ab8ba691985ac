#include "pass.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "kernels/repack.h"
#include "os.h"

namespace divine {

void Activations::layout(int in_dim, int count, const float* x0, int x_stride) {
  in = in_dim;
  const size_t b = size_t(in_dim / 32);
  rows.resize(size_t(count));
  for (int r = 0; r < count; ++r) {
    uint8_t* p = memory + size_t(r) * stride;
    Activation& a = rows[size_t(r)];
    a.x = x0 + size_t(r) * x_stride;
    a.scale = reinterpret_cast<float*>(p);
    a.sum32 = a.scale + b;
    a.sum16 = a.sum32 + b;
    a.pairs32 = reinterpret_cast<const int32_t*>(a.sum16 + 2 * b);
    a.pairs16 = a.pairs32 + b;
    a.q = reinterpret_cast<const int8_t*>(a.pairs16 + 2 * b);
  }
}

namespace {

size_t activation_stride(int widest) { return (size_t(widest) * 2 + 63) / 64 * 64; }

// Groups of a unit: enough bytes that handing units out costs nothing beside reading them.
int grain(const Matrix& m) { return std::max(1, int(12288 / m.group_bytes)); }

}  // namespace

Pass::Pass(Executor& executor)
    : ex_(executor),
      k_(executor.kernels_),
      threads_(executor.threads_),
      barrier_(threads_),
      shares_(int(executor.ops_.size()) * 3 + 4, threads_),
      phase_of_(size_t(threads_)),
      meetings_(size_t(threads_)),
      ready_(executor.ops_.size(), nullptr),
      units_(executor.ops_.size()),
      scratch_(size_t(threads_)),
      plans_(executor.ops_.size()),
      head_scratch_(size_t(threads_)) {
  const size_t stride = activation_stride(ex_.widest_), bytes = stride * size_t(ex_.max_rows_);
  for (Activations* a : {&input_, &hidden_}) {
    a->memory = static_cast<uint8_t*>(os::reserve(bytes));
    a->stride = stride;
  }
  normed_.resize(size_t(ex_.widest_) * size_t(ex_.max_rows_));
  for (size_t i = 0; i < ex_.ops_.size(); ++i) {
    const auto* linear = std::get_if<LinearOp>(&ex_.ops_[i]);
    if (linear == nullptr) continue;
    for (int p = 0; p < int(linear->parts.size()); ++p) {
      const Matrix& m = ex_.matrices_[linear->parts[p].matrix];
      for (int g = 0; g < m.groups; g += grain(m))
        units_[i].push_back({p, g, std::min(g + grain(m), m.groups)});
    }
    if (i == 0 || linear->norm.eps >= 0.0f || ex_.values_[linear->x].dim % 32 != 0) continue;
    // The operation before it quantizes its own output on the spot.
    if (const auto* g = std::get_if<GatedMlpOp>(&ex_.ops_[i - 1]); g && g->out == linear->x)
      ready_[i] = &hidden_;
    if (const auto* a = std::get_if<AttentionOp>(&ex_.ops_[i - 1]); a && a->out == linear->x)
      ready_[i] = &hidden_;
  }
}

Pass::~Pass() {
  const size_t bytes = activation_stride(ex_.widest_) * size_t(ex_.max_rows_);
  os::release(input_.memory, bytes);
  os::release(hidden_.memory, bytes);
  os::release(head_input_.memory, head_input_.stride * head_capacity_);
}

void Pass::quantize_range(const float* x, int begin, int end, const Activation& a) const {
  k_.quantize(x, begin, end, const_cast<int8_t*>(a.q), const_cast<float*>(a.scale),
              const_cast<float*>(a.sum32), const_cast<float*>(a.sum16),
              const_cast<int32_t*>(a.pairs32), const_cast<int32_t*>(a.pairs16));
}

float* Pass::row(int value, int r) const {
  const Executor::Value& v = ex_.values_[value];
  return v.data + size_t(r) * v.stride;
}

bool Pass::run(const PassInput& input, PassOutput& output, const std::function<bool()>& poll) {
  const auto start = Clock::now();
  in_ = &input;
  out_ = &output;
  poll_ = &poll;
  last_poll_ = start;
  place_rows();
  prepare_ropes();
  plan_attention();
  prepare_head();
  shares_.reset();
  std::fill(phase_of_.begin(), phase_of_.end(), 0);
  std::fill(meetings_.begin(), meetings_.end(), 0);
  stop_at_.store(INT_MAX);
  const std::function<void(int)> job = [this](int thread) { walk(thread); };
  ThreadPool::instance().run(threads_, job);
  const bool completed = stop_at_.load() == INT_MAX;
  finish_states(completed);
  if (completed) finish_head();
  output.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return completed;
}

bool Pass::meet(int thread) {
  const int meeting = ++meetings_[size_t(thread)];
  if (thread == 0) {
    bool stop = ex_.cancel_.load(std::memory_order_relaxed);
    if ((meeting & 15) == 0 || in_->rows > 16) {
      const auto now = Clock::now();
      if (now - last_poll_ > std::chrono::milliseconds(50)) {
        last_poll_ = now;
        stop = stop || (*poll_)();
      }
    }
    if (stop) stop_at_.store(meeting, std::memory_order_relaxed);
  }
  barrier_.wait();
  return stop_at_.load(std::memory_order_relaxed) <= meeting;
}

void Pass::walk(int thread) {
  for (int i = 0; i < int(ex_.ops_.size()); ++i)
    if (step(i, thread)) return;
}

bool Pass::step(int number, int thread) {
  return std::visit([&](const auto& op) { return step(op, number, thread); }, ex_.ops_[number]);
}

bool Pass::step(const EmbedOp& op, int, int thread) {
  const Matrix& table = ex_.matrices_[op.table];
  for (int r; (r = take(thread, in_->rows)) >= 0;) {
    float* x = row(op.out, r);
    if (in_->takes_vector != nullptr && in_->takes_vector[r]) {
      std::memcpy(x, in_->vectors + size_t(r) * ex_.dim_, sizeof(float) * size_t(ex_.dim_));
      continue;
    }
    const int token = in_->tokens[r];
    dequantize_row(table.format, table.data + size_t(token / kLanes) * table.group_bytes,
                   token % kLanes, table.in, x);
    for (int i = 0; op.scale != 1.0f && i < table.in; ++i) x[i] = x[i] * op.scale;
  }
  end_phase(thread);
  return meet(thread);
}

// Norms and quantizes the rows of x for the matrices that follow.
bool Pass::inputs(int x, const NormSpec& norm, int thread) {
  const Executor::Value& value = ex_.values_[x];
  const bool normed = norm.eps >= 0.0f;
  const int dim = value.dim;
  for (int r; (r = take(thread, in_->rows)) >= 0;) {
    const float* v = row(x, r);
    if (normed) {
      float* to = normed_.data() + size_t(r) * value.stride;
      k_.rms_norm(v, norm.weight >= 0 ? ex_.vectors_[norm.weight].data() : nullptr, norm.eps, dim,
                  to);
      v = to;
    }
    if (dim % 32 == 0) quantize_range(v, 0, dim, input_.rows[size_t(r)]);
  }
  end_phase(thread);
  return meet(thread);
}

// Points input_ at where inputs() will leave the rows of x; the same for every thread.
void Pass::point_inputs(Activations& a, int x, const NormSpec& norm) {
  const Executor::Value& v = ex_.values_[x];
  a.layout(v.dim, in_->rows, norm.eps >= 0.0f ? normed_.data() : v.data, v.stride);
}

bool Pass::step(const LinearOp& op, int number, int thread) {
  const Activations* a = ready_[number];
  if (a == nullptr) {
    if (thread == 0) point_inputs(input_, op.x, op.norm);
    if (meet(thread) || inputs(op.x, op.norm, thread)) return true;
    a = &input_;
  }
  matrices(op, *a, units_[number], thread);
  end_phase(thread);
  return meet(thread);
}

bool Pass::step(const AttentionOp& op, int number, int thread) {
  const bool quantize = ready_[size_t(number) + 1] != nullptr;
  if (thread == 0 && quantize) point_inputs(hidden_, op.out, NormSpec{});
  rotate_and_store(op, thread);
  end_phase(thread);
  if (meet(thread)) return true;
  attend(op, plans_[number], thread);
  end_phase(thread);
  if (meet(thread)) return true;
  gather_outputs(op, plans_[number], quantize, thread);
  end_phase(thread);
  return meet(thread);
}

bool Pass::step(const GatedMlpOp& op, int number, int thread) {
  const bool quantize = ready_[size_t(number) + 1] != nullptr;
  if (thread == 0) {
    point_inputs(input_, op.x, op.norm);
    if (quantize) point_inputs(hidden_, op.out, NormSpec{});
  }
  if (meet(thread) || inputs(op.x, op.norm, thread)) return true;
  gated(op, input_, quantize, thread);
  end_phase(thread);
  return meet(thread);
}

bool Pass::step(const TapOp& op, int number, int thread) {
  if (in_->taps.empty()) return false;
  const int tap = int(std::count_if(ex_.ops_.begin(), ex_.ops_.begin() + number,
                                    [](const Op& o) { return std::holds_alternative<TapOp>(o); }));
  bool wanted = false;
  for (size_t i = 0; i < in_->taps.size(); ++i) {
    if (in_->taps[i].first != tap) continue;
    wanted = true;
    const int dim = ex_.values_[op.x].dim;
    if (thread == 0)
      for (size_t j = 0; j < in_->taps[i].second.size(); ++j)
        std::memcpy(out_->taps[i] + j * size_t(dim), row(op.x, in_->taps[i].second[j]),
                    sizeof(float) * size_t(dim));
  }
  return wanted && meet(thread);
}

}  // namespace divine
