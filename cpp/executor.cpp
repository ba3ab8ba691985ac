#include "executor.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/repack.h"
#include "os.h"
#include "pass.h"

namespace divine {
namespace {

constexpr size_t kAlign = 64;
size_t aligned(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

}  // namespace

Executor::Executor(const KernelTable& kernels, int threads, int max_rows, size_t weight_bytes)
    : kernels_(kernels), threads_(threads), max_rows_(max_rows), arena_bytes_(weight_bytes) {
  require(threads >= 1 && threads <= kMaxThreads, "threads must be 1 to 256");
  require(max_rows >= 1 && max_rows <= 4096, "max_rows must be 1 to 4096");
  arena_ = static_cast<uint8_t*>(os::reserve(arena_bytes_));
}

Executor::~Executor() {
  pass_.reset();
  os::release(arena_, arena_bytes_);
  os::release(buffers_, buffer_bytes_);
}

int Executor::add_matrix(Format format, int out, int in) {
  const FormatInfo& fi = info(format);
  require(!finished_ && out > 0 && in > 0 && in % fi.block == 0, "add_matrix: bad shape");
  Matrix m;
  m.format = format;
  m.out = out;
  m.in = in;
  m.groups = (out + kLanes - 1) / kLanes;
  m.group_bytes = size_t(in / fi.block) * unit_bytes(format);
  const size_t bytes = size_t(m.groups) * m.group_bytes, at = aligned(used_);
  require(at + bytes <= arena_bytes_, "add_matrix: the arena is full");
  used_ = at + bytes;
  m.data = arena_ + at;
  matrices_.push_back(m);
  return int(matrices_.size()) - 1;
}

int Executor::share_matrix(const Executor& other, int id) {
  require(!finished_ && id >= 0 && id < int(other.matrices_.size()),
          "share_matrix: unknown matrix");
  matrices_.push_back(other.matrices_[size_t(id)]);
  return int(matrices_.size()) - 1;
}

void Executor::fill_matrix(int id, const uint8_t* raw) {
  require(!finished_ && id >= 0 && id < int(matrices_.size()), "fill_matrix: unknown matrix");
  const Matrix m = matrices_[id];
  require(!m.filled, "fill_matrix: it has its weights");  // shared ones are another's
  uint8_t* data = arena_ + (m.data - arena_);
  const FormatInfo& fi = info(m.format);
  const size_t row_bytes = size_t(m.in / fi.block) * fi.block_bytes;
  Shares shares(threads_);
  const std::function<void(int)> job = [&](int thread) {
    for (int g; (g = shares.next(thread, m.groups)) >= 0;) {
      const uint8_t* rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int r = g * kLanes + i;
        rows[i] = r < m.out ? raw + size_t(r) * row_bytes : nullptr;
      }
      repack_group(m.format, rows, m.in, data + size_t(g) * m.group_bytes);
    }
  };
  ThreadPool::instance().run(threads_, job);
  matrices_[id].filled = true;
}

int Executor::add_vector(const float* data, int n) {
  require(n > 0, "add_vector: empty");
  vectors_.emplace_back(data, data + n);
  vectors_.back().resize((size_t(n) + kLanes - 1) / kLanes * kLanes, 0.0f);
  return int(vectors_.size()) - 1;
}

int Executor::add_value(int dim) {
  require(dim > 0 && dim <= 1 << 20, "add_value: the width must be 1 to 2^20");
  values_.push_back({dim, (dim + kLanes - 1) / kLanes * kLanes, nullptr});
  return int(values_.size()) - 1;
}

int Executor::add_rope(RopeSpec rope) {
  require(rope.dims > 0 && rope.dims % 2 == 0 && int(rope.frequencies.size()) == rope.dims / 2,
          "add_rope: needs dims / 2 frequencies");
  ropes_.push_back(std::move(rope));
  return int(ropes_.size()) - 1;
}

void Executor::add_op(Op op) {
  require(!finished_, "add_op: already finished");
  ops_.push_back(std::move(op));
}

namespace {

// Checks one operation's numbers against what the executor holds.
class Checker {
 public:
  Checker(const std::vector<Matrix>& matrices, const std::vector<std::vector<float>>& vectors,
          std::vector<int> value_dims, size_t ropes)
      : matrices_(matrices), vectors_(vectors), dims_(std::move(value_dims)), ropes_(ropes) {}

  int dim(int value) const {
    require(value >= 0 && value < int(dims_.size()), "unknown value");
    return dims_[value];
  }
  const Matrix& matrix(int i) const {
    require(i >= 0 && i < int(matrices_.size()), "unknown matrix");
    return matrices_[i];
  }
  void vector(int i, int dim) const {
    require(i >= 0 && i < int(vectors_.size()) && int(vectors_[i].size()) >= dim,
            "vector missing or too short");
  }
  void norm(const NormSpec& n, int dim) const {
    if (n.weight >= 0) vector(n.weight, dim);
  }
  void product(int matrix_id, int x, int out_dim, int bias) const {
    const Matrix& m = matrix(matrix_id);
    require(m.in == dim(x) && m.out == out_dim, "matrix does not fit its values");
    if (bias >= 0) vector(bias, out_dim);
  }

  void operator()(const EmbedOp& o) const {
    require(matrix(o.table).in == dim(o.out), "embed: width differs");
  }
  void operator()(const GivenOp& o) const { dim(o.out); }
  void operator()(const NormalizeOp& o) const {
    require(dim(o.out) == dim(o.x), "normalize: width differs");
    norm(o.norm, dim(o.x));
    require(o.norm.eps >= 0.0f, "normalize: no norm");
  }
  void operator()(const ConcatOp& o) const {
    long long width = 0;
    for (const int x : o.xs) {
      width += dim(x);
      require(x != o.out, "concat: output must not be an input");
    }
    require(width == dim(o.out), "concat: width differs");
  }
  void operator()(const AddOp& o) const {
    require(dim(o.out) == dim(o.x) && dim(o.out) == dim(o.y), "add: width differs");
    if (o.weight >= 0) vector(o.weight, dim(o.out));
  }
  void operator()(const LinearOp& o) const {
    require(!o.parts.empty(), "linear: no parts");
    require(o.activation == Activate::None || o.residual < 0, "linear: residual and activation");
    norm(o.norm, dim(o.x));
    for (const PartSpec& p : o.parts) {
      product(p.matrix, o.x, dim(p.out), p.bias);
      require(p.out != o.x, "linear: output must not be its input");
    }
    if (o.residual >= 0)
      require(o.parts.size() == 1 && dim(o.residual) == dim(o.parts[0].out), "linear: residual");
  }
  void operator()(const AttentionOp& o) const {
    require(o.heads > 0 && o.kv_heads > 0 && o.heads % o.kv_heads == 0, "attention: heads");
    require(o.head_dim > 0 && o.head_dim % 16 == 0 && o.head_dim <= 1024, "attention: head_dim");
    require(o.heads <= 1 << 16, "attention: heads");  // so that products below do not overflow
    require(dim(o.q) == o.heads * o.head_dim && dim(o.out) == o.heads * o.head_dim &&
                dim(o.k) == o.kv_heads * o.head_dim && dim(o.v) == o.kv_heads * o.head_dim,
            "attention: widths");
    require(o.layer >= 0 && o.window >= 0, "attention: layer or window");
    require(o.rope < int(ropes_), "attention: unknown rope");
    norm(o.q_norm, o.head_dim);
    norm(o.k_norm, o.head_dim);
  }
  void operator()(const GatedMlpOp& o) const {
    norm(o.norm, dim(o.x));
    product(o.gate, o.x, dim(o.out), -1);
    product(o.up, o.x, dim(o.out), -1);
  }
  void operator()(const TapOp& o) const { dim(o.x); }
  void operator()(const HeadOp& o) const {
    norm(o.norm, dim(o.x));
    product(o.matrix, o.x, matrix(o.matrix).out, o.bias);
  }

 private:
  const std::vector<Matrix>& matrices_;
  const std::vector<std::vector<float>>& vectors_;
  std::vector<int> dims_;
  size_t ropes_;
};

}  // namespace

void Executor::finish(int vocabulary, int dim) {
  require(!finished_ && !ops_.empty(), "finish: nothing to finish");
  std::vector<int> dims;
  for (const Value& v : values_) dims.push_back(v.dim);
  const Checker check(matrices_, vectors_, dims, ropes_.size());
  require(std::holds_alternative<EmbedOp>(ops_.front()), "the first operation must be embed");
  for (const Matrix& m : matrices_) require(m.filled, "finish: a matrix has no weights yet");
  const auto dim_of = [&](int value) { return values_[size_t(value)].dim; };
  for (size_t i = 0; i < ops_.size(); ++i) {
    std::visit(check, ops_[i]);
    require(std::holds_alternative<HeadOp>(ops_[i]) == (i + 1 == ops_.size()),
            "the last operation, and no other, must be the head");
    require(i == 0 || !std::holds_alternative<EmbedOp>(ops_[i]), "no later operation may be embed");
    // What a pass returns of a tap is as wide as the model.
    if (const auto* tap = std::get_if<TapOp>(&ops_[i]))
      require(dim_of(tap->x) == dim, "tap: width differs from the model's");
    if (const auto* g = std::get_if<GivenOp>(&ops_[i]))
      require(dim_of(g->out) == dim, "given: width differs from the model's");
    given_ = given_ || std::holds_alternative<GivenOp>(ops_[i]);
    if (const auto* h = std::get_if<HeadOp>(&ops_[i]))
      require(dim_of(h->x) == dim, "head: width differs from the model's");
    if (const auto* a = std::get_if<AttentionOp>(&ops_[i])) {
      require(a->layer == int(layer_shapes_.size()), "attention layers must come in order");
      require(a->rope < 0 || ropes_[a->rope].dims <= a->head_dim, "rope wider than the head");
      layer_shapes_.emplace_back(a->kv_heads, a->head_dim);
    }
    taps_ += std::holds_alternative<TapOp>(ops_[i]);
  }
  const auto& embed = std::get<EmbedOp>(ops_.front());
  const auto& head = std::get<HeadOp>(ops_.back());
  require(matrices_[head.matrix].out == vocabulary && matrices_[embed.table].out >= vocabulary,
          "vocabulary differs from the head's or the table's rows");
  require(values_[embed.out].dim == dim, "dim differs from the embedding's");
  vocabulary_ = vocabulary;
  dim_ = dim;
  size_t bytes = 0;
  for (Value& v : values_) bytes += aligned(size_t(v.stride) * max_rows_ * sizeof(float));
  buffer_bytes_ = bytes;
  buffers_ = static_cast<uint8_t*>(os::reserve(bytes));
  size_t at = 0;
  for (Value& v : values_) {
    v.data = reinterpret_cast<float*>(buffers_ + at);
    at += aligned(size_t(v.stride) * max_rows_ * sizeof(float));
    widest_ = std::max(widest_, v.stride);
  }
  finished_ = true;
  pass_ = std::make_unique<Pass>(*this);
}

std::unique_ptr<State> Executor::new_state(int capacity, KvType type) const {
  require(finished_, "new_state: the program is not finished");
  require(capacity >= 1 && capacity <= 1 << 24, "new_state: capacity out of range");
  for (const auto& [heads, dim] : layer_shapes_)
    if (type == KvType::Q8_0 && dim % 32 != 0)
      throw std::invalid_argument(
          "a q8_0 cache needs heads of a multiple of 32 values; this model's have " +
          std::to_string(dim) + ", for which f16 is allowed");
  return std::make_unique<State>(KvShape(type, layer_shapes_), capacity, max_rows_);
}

std::shared_ptr<const PackedRows> Executor::pack_rows(std::vector<int> ids) const {
  require(finished_, "pack_rows: the program is not finished");
  const auto& head = std::get<HeadOp>(ops_.back());
  return std::make_shared<const PackedRows>(matrices_[size_t(head.matrix)], std::move(ids));
}

bool Executor::run(const PassInput& input, PassOutput& output, const std::function<bool()>& poll) {
  require(finished_, "run: the program is not finished");
  const std::lock_guard one(running_);
  const struct Heard {  // at the end only: who cancels may be ahead of the pass
    std::atomic<bool>& cancel;
    ~Heard() { cancel.store(false, std::memory_order_relaxed); }
  } heard{cancel_};
  return pass_->run(input, output, poll);
}

}  // namespace divine
