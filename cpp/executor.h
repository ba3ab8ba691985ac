// The native executor: a program with its weights, and passes over rows.
//
// One pass walks the operations in order on all threads; between two phases the threads meet at a
// barrier. A phase divides its work by output, so a number never depends on the thread count. What
// a pass needs of the rows (positions, ancestors, rope angles) is worked out once, in pass.h.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "kernels/table.h"
#include "matrix.h"
#include "shortlist.h"
#include "state.h"
#include "threads.h"

namespace divine {

struct NormSpec {
  int weight = -1;    // vector number, or -1 for none
  float eps = -1.0f;  // negative: no norm
};

struct RopeSpec {
  bool half = false;  // pairs (i, i + dims / 2) instead of (2 i, 2 i + 1)
  int dims = 0;
  float magnitude = 1.0f;
  std::vector<double> frequencies;
};

struct EmbedOp {
  int out, table;
  float scale;
};
struct GivenOp {  // the vectors of the rows, whatever their tokens
  int out;
};
struct PartSpec {
  int out, matrix, bias;  // bias: vector number or -1
};
enum class Activate : int { None, Silu, Gelu };
struct LinearOp {
  int x;
  NormSpec norm;
  std::vector<PartSpec> parts;
  int residual;  // value or -1
  Activate activation = Activate::None;
};
struct NormalizeOp {
  int out, x;
  NormSpec norm;
};
struct ConcatOp {
  int out;
  std::vector<int> xs;
};
struct AddOp {            // out = weight * x + scale * y
  int out, x, y, weight;  // weight: vector number or -1
  float scale;
};
struct AttentionOp {
  int out, q, k, v, layer, heads, kv_heads, head_dim;
  float scale;
  int rope;  // number or -1
  NormSpec q_norm, k_norm;
  int window;  // 0: none
  float softcap;
};
struct GatedMlpOp {
  int out, x, gate, up;
  bool gelu;
  NormSpec norm;
};
struct TapOp {
  int x;
};
struct HeadOp {
  int x, matrix, bias;
  NormSpec norm;
};
using Op = std::variant<EmbedOp, GivenOp, LinearOp, NormalizeOp, ConcatOp, AddOp, AttentionOp,
                        GatedMlpOp, TapOp, HeadOp>;

struct PassInput {
  int rows = 0;
  const int32_t* tokens = nullptr;        // [rows]
  const int32_t* parents = nullptr;       // [rows]
  const int32_t* sequences = nullptr;     // [rows]
  const float* vectors = nullptr;         // [rows, dim] or null
  const uint8_t* takes_vector = nullptr;  // [rows] or null
  std::vector<State*> states;
  std::vector<int> best, top, logits;                  // rows, ascending
  const Shortlist* shortlist = nullptr;                // tokens that these may be of; null: all
  int k = 0;                                           // for top
  std::vector<std::pair<int, std::vector<int>>> taps;  // tap number (or kFinalTap), rows
};

constexpr int kFinalTap = -1;

struct PassOutput {  // filled by the caller's arrays
  int32_t* best_ids = nullptr;
  float *best_logits = nullptr, *log_sum_exp = nullptr;
  int32_t* top_ids = nullptr;
  float *top_logits = nullptr, *top_log_sum_exp = nullptr;
  float* logits = nullptr;
  std::vector<float*> taps;
  double seconds = 0.0;
};

class Pass;

class Executor {
 public:
  Executor(const KernelTable& kernels, int threads, int max_rows, size_t weight_bytes);
  ~Executor();
  Executor(const Executor&) = delete;

  // Gives a matrix its place, in order of use; fill_matrix() brings the weights, in any order.
  int add_matrix(Format format, int out, int in);
  void fill_matrix(int id, const uint8_t* raw);
  // A matrix of another executor, used where it lies; that executor must outlive this one.
  int share_matrix(const Executor& other, int id);
  int add_vector(const float* data, int n);
  int add_value(int dim);
  int add_rope(RopeSpec rope);
  void add_op(Op op);
  // Checks the operations against each other and allocates buffers; throws std::invalid_argument.
  void finish(int vocabulary, int dim);

  std::unique_ptr<State> new_state(int capacity, KvType type) const;
  // Copies of the output matrix's rows of these tokens, side by side.
  std::shared_ptr<const PackedRows> pack_rows(std::vector<int> ids) const;
  // Throws std::invalid_argument, std::overflow_error (a sequence is full). poll() is called now
  // and then on the calling thread; when it returns true, or after cancel(), the pass is given up
  // between two operations and run() returns false with the states as they were. A second thread
  // waits.
  bool run(const PassInput& input, PassOutput& output, const std::function<bool()>& poll);
  // Ends the pass in progress or, if there is none, the next one.
  void cancel() { cancel_.store(true, std::memory_order_relaxed); }

  const KernelTable& kernels() const { return kernels_; }
  int threads() const { return threads_; }
  int max_rows() const { return max_rows_; }
  int vocabulary() const { return vocabulary_; }
  int dim() const { return dim_; }
  size_t weight_bytes() const { return used_; }
  int matrices() const { return int(matrices_.size()); }
  const Matrix& matrix(int i) const { return matrices_.at(i); }

 private:
  friend class Pass;
  struct Value {
    int dim = 0, stride = 0;  // floats per row, a multiple of 16
    float* data = nullptr;
  };

  const KernelTable& kernels_;
  const int threads_, max_rows_;
  uint8_t* arena_ = nullptr;
  const size_t arena_bytes_;
  size_t used_ = 0;
  std::vector<Matrix> matrices_;
  std::vector<std::vector<float>> vectors_;
  std::vector<Value> values_;
  std::vector<RopeSpec> ropes_;
  std::vector<Op> ops_;
  std::vector<std::pair<int, int>> layer_shapes_;  // kv heads and head_dim by layer
  int vocabulary_ = 0, dim_ = 0, widest_ = 0, taps_ = 0;
  bool given_ = false;  // its rows need vectors
  bool finished_ = false;
  uint8_t* buffers_ = nullptr;
  size_t buffer_bytes_ = 0;
  std::unique_ptr<Pass> pass_;
  std::mutex running_;  // one pass at a time: it works in the executor's buffers
  std::atomic<bool> cancel_{false};
};

}  // namespace divine
