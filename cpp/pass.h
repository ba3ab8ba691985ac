// One pass in progress: what it knows of its rows, its scratch memory, and its phases.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "executor.h"

namespace divine {

// One sequence's rows in this pass. Row i of the sequence is written to slot length + i.
struct SequenceRows {
  State* state = nullptr;
  int length = 0;         // committed positions
  std::vector<int> rows;  // pass row numbers, ascending
  int chain = 0;          // the first `chain` rows follow one another: their position is their slot
};

// One row's place in its sequence.
struct RowPlace {
  int sequence = 0, index = 0, position = 0;
  // For rows off the chain: slots of logical positions length .. position, itself included.
  std::vector<int> slots;
};

// Quantized and float inputs of matrix products, for all rows of the pass.
struct Activations {
  uint8_t* memory = nullptr;
  size_t stride = 0;
  float* x = nullptr;  // [rows, x_stride] the float inputs, when they are not a value's own
  std::vector<Activation> rows;
  void layout(int in_dim, int count, const float* x0, int x_stride);
};

inline size_t activation_stride(int widest) { return (size_t(widest) * 2 + 63) / 64 * 64; }

// What each thread keeps for itself; a cache line each, since all of them write all the time.
struct alignas(64) ThreadState {
  int meetings = 0;
  bool unsettled = false;  // others may still be writing what comes next
};

// Floats that one thread works through sooner than all of them could meet once more.
constexpr int kAlone = 3072;

constexpr int kPairOutputs = 2 * kLanes;  // one block of a following product's input

struct MatrixUnit {  // groups [begin, end) of one part of a Linear
  int part, begin, end;
};

struct AttentionScratch {
  std::vector<float> scores;           // [queries of a unit, score_stride_]
  std::vector<float> part;             // [kQueryTile, head_dim]
  std::vector<const uint8_t*> values;  // [kSplit] of committed positions and the chain
  std::vector<const uint8_t*> tail;    // [kSplit] of one row off the chain
};

// A group of the head: of the output matrix, or of rows packed out of it.
struct HeadGroup {
  const Matrix* matrix;
  int group;
  uint32_t listed;  // bit i: output i counts
};

constexpr int kPartValues = 16;  // a query's part: maximum, sum, room, then the weighted values

// How one attention operation divides its work in this pass.
struct AttentionPlan {
  struct Tile {
    int sequence, first, count;  // rows [first, first + count) of the sequence
  };
  std::vector<Tile> tiles;
  int splits = 1;         // of the longest row
  bool by_split = false;  // few tiles: one unit per split, put together afterwards
};

class Pass {
 public:
  explicit Pass(Executor& executor);
  ~Pass();
  Pass(const Pass&) = delete;
  bool run(const PassInput& input, PassOutput& output, const std::function<bool()>& poll);

 private:
  using Clock = std::chrono::steady_clock;

  // pass_rows.cpp: checking and placing the rows
  void place_rows();
  void prepare_ropes();
  void finish_states(bool completed);

  // pass.cpp: walking the program
  void walk(int thread);
  // All threads meet, and the last to arrive does the work; true when the pass is given up.
  template <class Work>
  bool meet(int thread, const Work& work);
  bool should_stop(int meeting);
  // Waits until everything is written that the other threads share in.
  bool settle(int thread) {
    return threads_state_[size_t(thread)].unsettled && meet(thread, [] {});
  }
  // Work on all rows between two shared phases; `floats` says how much it is for each unit.
  template <class Work>
  bool between(int thread, int units, int floats, const Work& work);
  int take(int thread, int units) { return shares_.next(thread, units); }
  // Every phase in which threads take units ends with this; the next one meets or settles first.
  void end_phase(int thread) { threads_state_[size_t(thread)].unsettled = true; }
  bool step(int number, int thread);
  bool step(const EmbedOp& op, int number, int thread);
  bool step(const GivenOp& op, int number, int thread);
  bool step(const LinearOp& op, int number, int thread);
  bool step(const NormalizeOp& op, int number, int thread);
  bool step(const ConcatOp& op, int number, int thread);
  bool step(const AddOp& op, int number, int thread);
  bool step(const AttentionOp& op, int number, int thread);
  bool step(const GatedMlpOp& op, int number, int thread);
  bool step(const TapOp& op, int number, int thread);
  bool step(const HeadOp& op, int number, int thread);
  bool inputs(int x, const NormSpec& norm, const Activations& a, int thread);
  const Activations* activations(bool hidden, int x, const NormSpec& norm);
  void quantize_range(const float* x, int begin, int end, const Activation& a) const;
  float* row(int value, int r) const {
    const Executor::Value& v = ex_.values_[size_t(value)];
    return v.data + size_t(r) * size_t(v.stride);
  }

  // pass_matmul.cpp
  template <class Store>  // store(row, const float[16])
  void group_times_rows(const Matrix& m, int group, const Activation* a, int rows,
                        const Store& store) const;
  void matrices(const LinearOp& op, const Activations& a, const std::vector<MatrixUnit>& units,
                int thread);
  void gated(const GatedMlpOp& op, const Activations& a, const Activations* next, int thread);

  // pass_attention.cpp
  void rotate_and_store(const AttentionOp& op, int r, int kv_head);
  void attend(const AttentionOp& op, const AttentionPlan& plan, int thread);
  void attend_split(const AttentionOp& op, const AttentionPlan& plan,
                    const AttentionPlan::Tile& tile, int kv_head, int split, AttentionScratch& s);
  float* part(const AttentionOp& op, const AttentionPlan& plan, int row, int head, int split);
  void gather_outputs(const AttentionOp& op, const AttentionPlan& plan, const Activations* next,
                      int r);
  void plan_attention();

  // pass_head.cpp
  void prepare_head();
  bool head_inputs(const HeadOp& op, int thread);
  void head_chunks(const HeadOp& op, int thread);
  int head_groups() const;  // groups of outputs to compute
  HeadGroup head_group(const Matrix& m, int i) const;
  int head_id(int group, int lane) const;  // the token of an output
  int head_best(int first, const float* v, int n) const;
  void finish_head();

  Executor& ex_;
  const KernelTable& k_;
  const int threads_;
  Barrier barrier_;
  Shares shares_;
  std::vector<ThreadState> threads_state_;
  const PassInput* in_ = nullptr;
  PassOutput* out_ = nullptr;
  const std::function<bool()>* poll_ = nullptr;
  Clock::time_point last_poll_;
  std::atomic<int> stop_at_{0};  // the meeting at which all threads give up

  std::vector<SequenceRows> sequences_;
  std::vector<RowPlace> places_;
  std::vector<std::vector<float>> cos_, sin_;  // per rope: [rows, dims / 2]
  // Inputs of products, quantized, lie in one of two places: what attention and a gated MLP hand on
  // does not overwrite the input they are made from. Layouts are shared by operations alike.
  uint8_t *input_memory_ = nullptr, *hidden_memory_ = nullptr;
  std::vector<std::unique_ptr<Activations>> layouts_;
  std::vector<const Activations*> input_of_;  // per operation: its quantized input
  std::vector<bool> ready_;  // per operation: the one before it has quantized that already
  std::vector<float> normed_;
  std::vector<std::vector<MatrixUnit>> units_;  // per operation

  std::vector<AttentionScratch> scratch_;  // per thread
  std::vector<AttentionPlan> plans_;       // per operation
  std::vector<float> parts_;               // [rows, heads, splits or 1, kPartValues + head_dim]
  size_t score_stride_ = 0;  // a split's keys, and the slots behind it that a tree's rows may need

  // head: rows that want logits, and per chunk of groups their largest logit and sum of
  // exponentials
  std::vector<int> head_rows_;
  std::vector<float> head_x_, chunk_max_, chunk_sum_;  // [rows, stride], [rows, chunks]
  std::vector<int> chunk_best_;                        // [rows, chunks]
  std::vector<uint8_t> keep_;                          // rows whose whole logits are kept
  std::vector<float> kept_;                            // [head rows, vocabulary] of those
  std::vector<std::vector<float>> outputs_;  // per thread: of a unit, before they are combined
  Activations head_input_;
  size_t head_capacity_ = 0;
};

template <class Work>
bool Pass::meet(int thread, const Work& work) {
  ThreadState& state = threads_state_[size_t(thread)];
  const int meeting = ++state.meetings;
  state.unsettled = false;
  if (thread == 0 && should_stop(meeting)) stop_at_.store(meeting, std::memory_order_relaxed);
  barrier_.wait([&] {
    shares_.reset();
    work();
  });
  return stop_at_.load(std::memory_order_relaxed) <= meeting;
}

template <class Work>
bool Pass::between(int thread, int units, int floats, const Work& work) {
  if (threads_ == 1 || units * floats <= kAlone)
    return meet(thread, [&] {
      for (int u = 0; u < units; ++u) work(u);
    });
  if (meet(thread, [] {})) return true;
  for (int u; (u = take(thread, units)) >= 0;) work(u);
  end_phase(thread);
  return meet(thread, [] {});
}

}  // namespace divine
