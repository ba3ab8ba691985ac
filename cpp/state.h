// The keys and values of one sequence.
//
// Positions live in slots of chunks of 256, each chunk holding all layers, so memory grows with the
// text. Rows of a pass are written behind the committed slots, in their order; commit() moves the
// accepted path forward into place. Inside a chunk: layer, key/value head, then 16 blocks of 16
// keys (one key per lane) and 256 values (kernels/attention.h has the layouts).
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace divine {

struct KvShape {
  KvType type = KvType::F16;
  struct Layer {
    int heads = 0, head_dim = 0;
    size_t offset = 0;  // in a chunk
  };
  std::vector<Layer> layers;
  size_t chunk_bytes = 0;

  KvShape(KvType type, const std::vector<std::pair<int, int>>& heads_and_dims);
  size_t key_block_bytes(int head_dim) const;
  size_t value_bytes(int head_dim) const;
};

// Copies key `from` of one block to key `to` of another.
void copy_key_lane(KvType type, int head_dim, const uint8_t* from_block, int from,
                   uint8_t* to_block, int to);

class State {
 public:
  State(const KvShape& shape, int capacity, int spare);
  State(const State& other);  // fork: what is pending is not copied
  State& operator=(const State&) = delete;
  ~State();

  int length() const { return length_; }
  int capacity() const { return capacity_; }
  size_t nbytes() const { return chunks_.size() * shape_.chunk_bytes; }
  const KvShape& shape() const { return shape_; }

  // Makes room for slots [0, slots); throws std::bad_alloc.
  void ensure(int slots);
  // The block of 16 keys that holds this slot (lane slot % 16), and the value of this slot.
  uint8_t* key_block(int layer, int head, int slot) const;
  uint8_t* value(int layer, int head, int slot) const;

  // What the running pass wrote: the pass's row numbers and parents, in slot order.
  void set_pending(std::vector<int> rows, std::vector<int> parents);
  // path: row numbers of that pass. Throws std::invalid_argument or std::overflow_error.
  void commit(const std::vector<int>& path);
  void truncate(int length);
  // Committed positions as bytes, blocks of 16 at a time (start and count are multiples of 16), and
  // back: load() appends. Only for a state of the same shape. Throw std::invalid_argument or
  // std::overflow_error.
  size_t saved_bytes(int count) const;
  void save(int start, int count, uint8_t* out) const;
  void load(const uint8_t* in, size_t bytes);
  // Overwrites every slot that is not committed with NaN (tests: nothing may depend on them).
  void poison();
  // Commits `length` positions of arbitrary values (benchmarks: speed does not depend on them).
  void fill(int length);
  // The bytes of one committed position's keys and values, all layers, in a plain order (tests).
  std::vector<uint8_t> bytes_at(int slot) const;

 private:
  void move_slot(int from, int to);

  KvShape shape_;
  int capacity_, spare_, length_ = 0;
  std::vector<uint8_t*> chunks_;
  std::vector<int> pending_rows_, pending_parents_;
};

}  // namespace divine
