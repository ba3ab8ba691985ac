#include "pass.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "kernels/repack.h"
#include "os.h"

namespace divine {

void Activations::layout(int in_dim, int count, const float* x0, int x_stride) {
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

// Groups of a unit: enough bytes that handing units out costs nothing beside reading them.
int grain(const Matrix& m) { return std::max(1, int(12288 / m.group_bytes)); }

}  // namespace

Pass::Pass(Executor& executor)
    : ex_(executor),
      k_(executor.kernels_),
      threads_(executor.threads_),
      barrier_(threads_),
      shares_(threads_),
      threads_state_(size_t(threads_)),
      input_of_(executor.ops_.size(), nullptr),
      ready_(executor.ops_.size(), false),
      units_(executor.ops_.size()),
      scratch_(size_t(threads_)),
      plans_(executor.ops_.size()),
      outputs_(size_t(threads_)) {
  const size_t bytes = activation_stride(ex_.widest_) * size_t(ex_.max_rows_);
  input_memory_ = static_cast<uint8_t*>(os::reserve(bytes));
  hidden_memory_ = static_cast<uint8_t*>(os::reserve(bytes));
  normed_.resize(size_t(ex_.widest_) * size_t(ex_.max_rows_));
  for (size_t i = 0; i < ex_.ops_.size(); ++i) {
    if (const auto* mlp = std::get_if<GatedMlpOp>(&ex_.ops_[i]))
      input_of_[i] = activations(false, mlp->x, mlp->norm);
    const auto* linear = std::get_if<LinearOp>(&ex_.ops_[i]);
    if (linear == nullptr) continue;
    for (int p = 0; p < int(linear->parts.size()); ++p) {
      const Matrix& m = ex_.matrices_[linear->parts[p].matrix];
      for (int g = 0; g < m.groups; g += grain(m))
        units_[i].push_back({p, g, std::min(g + grain(m), m.groups)});
    }
    if (i > 0 && linear->norm.eps < 0.0f && ex_.values_[linear->x].dim % 32 == 0) {
      // The operation before it quantizes its own output on the spot.
      const auto* g = std::get_if<GatedMlpOp>(&ex_.ops_[i - 1]);
      const auto* a = std::get_if<AttentionOp>(&ex_.ops_[i - 1]);
      ready_[i] = (g != nullptr && g->out == linear->x) || (a != nullptr && a->out == linear->x);
    }
    input_of_[i] = activations(ready_[i], linear->x, linear->norm);
  }
}

Pass::~Pass() {
  const size_t bytes = activation_stride(ex_.widest_) * size_t(ex_.max_rows_);
  os::release(input_memory_, bytes);
  os::release(hidden_memory_, bytes);
  os::release(head_input_.memory, head_input_.stride * head_capacity_);
}

void Pass::quantize_range(const float* x, int begin, int end, const Activation& a) const {
  k_.quantize(x, begin, end, const_cast<int8_t*>(a.q), const_cast<float*>(a.scale),
              const_cast<float*>(a.sum32), const_cast<float*>(a.sum16),
              const_cast<int32_t*>(a.pairs32), const_cast<int32_t*>(a.pairs16));
}

// Where the rows of x lie for the products that follow, normed if need be.
const Activations* Pass::activations(bool hidden, int x, const NormSpec& norm) {
  const Executor::Value& v = ex_.values_[x];
  auto made = std::make_unique<Activations>();
  made->memory = hidden ? hidden_memory_ : input_memory_;
  made->stride = activation_stride(ex_.widest_);
  made->layout(v.dim, ex_.max_rows_, norm.eps >= 0.0f ? normed_.data() : v.data, v.stride);
  for (const auto& old : layouts_) {
    const Activation &a = old->rows.front(), &b = made->rows.front();
    if (a.x == b.x && a.q == b.q && a.scale == b.scale) return old.get();
  }
  layouts_.push_back(std::move(made));
  return layouts_.back().get();
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
  std::fill(threads_state_.begin(), threads_state_.end(), ThreadState{});
  stop_at_.store(INT_MAX);
  const std::function<void(int)> job = [this](int thread) { walk(thread); };
  ThreadPool::instance().run(threads_, job);
  const bool completed = stop_at_.load() == INT_MAX;
  finish_states(completed);
  if (completed) finish_head();
  output.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return completed;
}

// Asked by thread 0 as it arrives: has the pass been cancelled?
bool Pass::should_stop(int meeting) {
  if (ex_.cancel_.load(std::memory_order_relaxed)) return true;
  if ((meeting & 15) != 0 && in_->rows <= 16) return false;
  const auto now = Clock::now();
  if (now - last_poll_ <= std::chrono::milliseconds(50)) return false;
  last_poll_ = now;
  return (*poll_)();
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
  return false;
}

bool Pass::step(const GivenOp& op, int, int thread) {
  const size_t dim = size_t(ex_.dim_);
  return between(thread, in_->rows, ex_.dim_, [&](int r) {
    std::memcpy(row(op.out, r), in_->vectors + size_t(r) * dim, sizeof(float) * dim);
  });
}

bool Pass::step(const NormalizeOp& op, int, int thread) {
  const int dim = ex_.values_[op.x].dim;
  const float* weight = op.norm.weight >= 0 ? ex_.vectors_[op.norm.weight].data() : nullptr;
  return between(thread, in_->rows, dim, [&](int r) {
    k_.rms_norm(row(op.x, r), weight, op.norm.eps, dim, row(op.out, r));
  });
}

bool Pass::step(const ConcatOp& op, int, int thread) {
  return between(thread, in_->rows, ex_.values_[op.out].dim, [&](int r) {
    float* to = row(op.out, r);
    for (const int x : op.xs) {
      const int dim = ex_.values_[x].dim;
      std::memcpy(to, row(x, r), sizeof(float) * size_t(dim));
      to += dim;
    }
  });
}

bool Pass::step(const AddOp& op, int, int thread) {
  const int dim = ex_.values_[op.out].dim;
  const float* weight = op.weight >= 0 ? ex_.vectors_[op.weight].data() : nullptr;
  return between(thread, in_->rows, dim, [&](int r) {
    const float *x = row(op.x, r), *y = row(op.y, r);
    float* out = row(op.out, r);
    for (int i = 0; i < dim; ++i) {
      const float kept = weight != nullptr ? weight[i] * x[i] : x[i];
      out[i] = kept + op.scale * y[i];
    }
  });
}

// Norms and quantizes the rows of x for the matrices that follow.
bool Pass::inputs(int x, const NormSpec& norm, const Activations& a, int thread) {
  const int dim = ex_.values_[x].dim;
  const float* weight = norm.weight >= 0 ? ex_.vectors_[norm.weight].data() : nullptr;
  return between(thread, in_->rows, dim, [&](int r) {
    const Activation& to = a.rows[size_t(r)];
    if (norm.eps >= 0.0f) k_.rms_norm(row(x, r), weight, norm.eps, dim, const_cast<float*>(to.x));
    if (dim % 32 == 0) quantize_range(to.x, 0, dim, to);
  });
}

bool Pass::step(const LinearOp& op, int number, int thread) {
  const Activations& a = *input_of_[number];
  if (ready_[number] ? settle(thread) : inputs(op.x, op.norm, a, thread)) return true;
  matrices(op, a, units_[number], thread);
  end_phase(thread);
  return false;
}

bool Pass::step(const AttentionOp& op, int number, int thread) {
  const int rows = in_->rows, kv_heads = op.kv_heads, width = op.heads * op.head_dim;
  const int turned = width / kv_heads + 2 * op.head_dim;  // floats for each key/value head
  if (between(thread, rows * kv_heads, turned,
              [&](int u) { rotate_and_store(op, u / kv_heads, u % kv_heads); }))
    return true;
  const AttentionPlan& plan = plans_[number];
  attend(op, plan, thread);
  end_phase(thread);
  const Activations* next = ready_[size_t(number) + 1] ? input_of_[size_t(number) + 1] : nullptr;
  return between(thread, rows, width * plan.splits,
                 [&](int r) { gather_outputs(op, plan, next, r); });
}

bool Pass::step(const GatedMlpOp& op, int number, int thread) {
  const Activations& a = *input_of_[number];
  if (inputs(op.x, op.norm, a, thread)) return true;
  gated(op, a, ready_[size_t(number) + 1] ? input_of_[size_t(number) + 1] : nullptr, thread);
  end_phase(thread);
  return false;
}

bool Pass::step(const TapOp& op, int number, int thread) {
  if (in_->taps.empty()) return false;
  const int tap = int(std::count_if(ex_.ops_.begin(), ex_.ops_.begin() + number,
                                    [](const Op& o) { return std::holds_alternative<TapOp>(o); }));
  const auto wants = [&](const auto& t) { return t.first == tap; };
  if (std::none_of(in_->taps.begin(), in_->taps.end(), wants)) return false;
  if (settle(thread)) return true;
  const int dim = ex_.values_[op.x].dim;
  for (size_t i = 0; thread == 0 && i < in_->taps.size(); ++i)
    for (size_t j = 0; wants(in_->taps[i]) && j < in_->taps[i].second.size(); ++j)
      std::memcpy(out_->taps[i] + j * size_t(dim), row(op.x, in_->taps[i].second[j]),
                  sizeof(float) * size_t(dim));
  end_phase(thread);
  return false;
}

}  // namespace divine
