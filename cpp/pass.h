// One pass in progress: what it knows of its rows, its scratch memory, and its phases.
#pragma once
#include <chrono>
#include <functional>
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
  int in = 0;
  std::vector<Activation> rows;
  void layout(int in_dim, int count, const float* x0, int x_stride);
};

struct MatrixUnit {  // groups [begin, end) of one part of a Linear
  int part, begin, end;
};

struct AttentionScratch {
  std::vector<float> scores;           // [queries of a unit, kSplit]
  std::vector<float> part;             // [kQueryTile, head_dim]
  std::vector<uint8_t> keys;           // one gathered block
  std::vector<const uint8_t*> values;  // [kSplit]
};

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
  bool meet(int thread);  // barrier; true when the pass is given up
  int take(int thread, int units) { return shares_.next(phase_of_[thread], thread, units); }
  void end_phase(int thread) { ++phase_of_[thread]; }
  bool step(int number, int thread);
  bool step(const EmbedOp& op, int number, int thread);
  bool step(const LinearOp& op, int number, int thread);
  bool step(const AttentionOp& op, int number, int thread);
  bool step(const GatedMlpOp& op, int number, int thread);
  bool step(const TapOp& op, int number, int thread);
  bool step(const HeadOp& op, int number, int thread);
  bool inputs(int x, const NormSpec& norm, int thread);
  void point_inputs(Activations& a, int x, const NormSpec& norm);
  void quantize_range(const float* x, int begin, int end, const Activation& a) const;
  float* row(int value, int r) const;

  // pass_matmul.cpp
  template <class Store>  // store(row, const float[16])
  void group_times_rows(const Matrix& m, int group, const Activation* a, int rows,
                        const Store& store) const;
  void matrices(const LinearOp& op, const Activations& a, const std::vector<MatrixUnit>& units,
                int thread);
  void gated(const GatedMlpOp& op, const Activations& a, bool quantize, int thread);

  // pass_attention.cpp
  void rotate_and_store(const AttentionOp& op, int thread);
  void attend(const AttentionOp& op, const AttentionPlan& plan, int thread);
  void attend_split(const AttentionOp& op, const AttentionPlan& plan,
                    const AttentionPlan::Tile& tile, int kv_head, int split, AttentionScratch& s);
  float* part(const AttentionOp& op, const AttentionPlan& plan, int row, int head, int split);
  void gather_outputs(const AttentionOp& op, const AttentionPlan& plan, bool quantize, int thread);
  void plan_attention();

  // pass_head.cpp
  void prepare_head();
  void head_inputs(const HeadOp& op, int thread);
  void head_chunks(const HeadOp& op, int thread);
  void finish_head();

  Executor& ex_;
  const KernelTable& k_;
  const int threads_;
  Barrier barrier_;
  Shares shares_;
  std::vector<int> phase_of_;
  const PassInput* in_ = nullptr;
  PassOutput* out_ = nullptr;
  const std::function<bool()>* poll_ = nullptr;
  Clock::time_point last_poll_;
  std::atomic<int> stop_at_{0};  // the meeting at which all threads give up
  std::vector<int> meetings_;    // per thread

  std::vector<SequenceRows> sequences_;
  std::vector<RowPlace> places_;
  std::vector<std::vector<float>> cos_, sin_;  // per rope: [rows, dims / 2]
  Activations input_, hidden_;
  std::vector<const Activations*> ready_;  // per operation: who already holds its quantized input
  std::vector<float> normed_;
  std::vector<std::vector<MatrixUnit>> units_;  // per operation

  std::vector<AttentionScratch> scratch_;  // per thread
  std::vector<AttentionPlan> plans_;       // per operation
  std::vector<float> parts_;  // [rows, heads, splits or 1, 2 + head_dim]: max, sum, weighted values

  // head: rows that want logits, and per chunk of outputs their largest logit and sum of
  // exponentials
  std::vector<int> head_rows_;
  std::vector<float> head_x_, chunk_max_, chunk_sum_;  // [rows, stride], [rows, chunks]
  std::vector<int> chunk_best_;                        // [rows, chunks]
  std::vector<uint8_t> keep_;                          // rows whose whole logits are kept
  std::vector<float> kept_;                            // [head rows, vocabulary] of those
  std::vector<std::vector<float>> head_scratch_;       // per thread: [rows, chunk]
  Activations head_input_;
  size_t head_capacity_ = 0;
};

}  // namespace divine
