#include "state.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "os.h"

namespace divine {

constexpr int kChunk = kSplit;  // slots per chunk
constexpr int kBlocks = kChunk / kKeyBlock;

KvShape::KvShape(KvType t, const std::vector<std::pair<int, int>>& heads_and_dims) : type(t) {
  for (const auto& [heads, dim] : heads_and_dims) {
    layers.push_back({heads, dim, chunk_bytes});
    chunk_bytes += size_t(heads) * (kBlocks * key_block_bytes(dim) + kChunk * value_bytes(dim));
    chunk_bytes = (chunk_bytes + 63) / 64 * 64;
  }
}

size_t KvShape::key_block_bytes(int dim) const {
  return type == KvType::F16 ? size_t(32) * dim : size_t(16) * dim + dim;
}
size_t KvShape::value_bytes(int dim) const {
  return type == KvType::F16 ? size_t(2) * dim : size_t(dim) + dim / 16;
}

State::State(const KvShape& shape, int capacity, int spare)
    : shape_(shape), capacity_(capacity), spare_(spare) {}

State::State(const State& o)
    : shape_(o.shape_), capacity_(o.capacity_), spare_(o.spare_), length_(o.length_) {
  ensure(length_);
  for (size_t i = 0; i < chunks_.size(); ++i)
    std::memcpy(chunks_[i], o.chunks_[i], shape_.chunk_bytes);
}

State::~State() {
  for (uint8_t* chunk : chunks_) os::release(chunk, shape_.chunk_bytes);
}

void State::ensure(int slots) {
  const size_t need = size_t(slots + kChunk - 1) / kChunk;
  chunks_.reserve(need);
  while (chunks_.size() < need)
    chunks_.push_back(static_cast<uint8_t*>(os::reserve(shape_.chunk_bytes)));
}

uint8_t* State::key_block(int layer, int head, int slot) const {
  const KvShape::Layer& l = shape_.layers[layer];
  const size_t k = shape_.key_block_bytes(l.head_dim), v = shape_.value_bytes(l.head_dim);
  return chunks_[slot / kChunk] + l.offset + head * (kBlocks * k + kChunk * v) +
         (slot % kChunk / kKeyBlock) * k;
}

uint8_t* State::value(int layer, int head, int slot) const {
  const KvShape::Layer& l = shape_.layers[layer];
  const size_t k = shape_.key_block_bytes(l.head_dim), v = shape_.value_bytes(l.head_dim);
  return chunks_[slot / kChunk] + l.offset + head * (kBlocks * k + kChunk * v) + kBlocks * k +
         (slot % kChunk) * v;
}

void State::set_pending(std::vector<int> rows, std::vector<int> parents) {
  pending_rows_ = std::move(rows);
  pending_parents_ = std::move(parents);
}

namespace {
// Copies key `from` of one block to key `to` of another: one element of every 16-wide line.
template <class T>
void move_lane(const uint8_t* from_block, int from, uint8_t* to_block, int to, int lines) {
  const T* source = reinterpret_cast<const T*>(from_block) + from;
  T* target = reinterpret_cast<T*>(to_block) + to;
  for (int i = 0; i < lines; ++i) target[16 * i] = source[16 * i];
}
}  // namespace

void copy_key_lane(KvType type, int dim, const uint8_t* from_block, int from, uint8_t* to_block,
                   int to) {
  if (type == KvType::F16) {
    move_lane<uint16_t>(from_block, from, to_block, to, dim);
  } else {
    move_lane<uint8_t>(from_block, from, to_block, to, dim);
    move_lane<uint16_t>(from_block + 16 * dim, from, to_block + 16 * dim, to, dim / 32);
  }
}

void State::move_slot(int from, int to) {
  if (from == to) return;
  for (int l = 0; l < int(shape_.layers.size()); ++l) {
    const int dim = shape_.layers[l].head_dim;
    for (int h = 0; h < shape_.layers[l].heads; ++h) {
      copy_key_lane(shape_.type, dim, key_block(l, h, from), from % kKeyBlock, key_block(l, h, to),
                    to % kKeyBlock);
      std::memcpy(value(l, h, to), value(l, h, from), shape_.value_bytes(dim));
    }
  }
}

void State::commit(const std::vector<int>& path) {
  std::vector<int> slots;
  int parent = -1;
  for (const int row : path) {
    const auto found = std::find(pending_rows_.begin(), pending_rows_.end(), row);
    if (found == pending_rows_.end())
      throw std::invalid_argument("commit: row " + std::to_string(row) +
                                  " is not a pending row of this sequence");
    const int index = int(found - pending_rows_.begin());
    if (pending_parents_[index] != parent)
      throw std::invalid_argument("commit: row " + std::to_string(row) +
                                  " does not follow the row before it in the path");
    parent = row;
    slots.push_back(index);
  }
  if (length_ + int(slots.size()) > capacity_)
    throw std::overflow_error("commit: " + std::to_string(length_ + slots.size()) +
                              " positions exceed the capacity of " + std::to_string(capacity_));
  for (int i = 0; i < int(slots.size()); ++i) move_slot(length_ + slots[i], length_ + i);
  length_ += int(slots.size());
  pending_rows_.clear();
  pending_parents_.clear();
}

void State::truncate(int length) {
  if (length < 0 || length > length_)
    throw std::invalid_argument("truncate: " + std::to_string(length) + " is not within 0.." +
                                std::to_string(length_));
  length_ = length;
  pending_rows_.clear();
  pending_parents_.clear();
  const size_t keep = size_t(length_ + kChunk - 1) / kChunk + 1;
  while (chunks_.size() > keep) {
    os::release(chunks_.back(), shape_.chunk_bytes);
    chunks_.pop_back();
  }
}

size_t State::saved_bytes(int count) const {
  size_t bytes = 0;
  for (const KvShape::Layer& l : shape_.layers)
    bytes += l.heads * (shape_.key_block_bytes(l.head_dim) +
                        size_t(kKeyBlock) * shape_.value_bytes(l.head_dim));
  return bytes * size_t(count / kKeyBlock);
}

void State::save(int start, int count, uint8_t* out) const {
  if (start < 0 || count < 0 || start % kKeyBlock || count % kKeyBlock || count > length_ - start)
    throw std::invalid_argument("save: positions must be whole blocks of 16 that are committed");
  for (int slot = start; slot < start + count; slot += kKeyBlock) {
    for (int l = 0; l < int(shape_.layers.size()); ++l) {
      const int dim = shape_.layers[l].head_dim;
      const size_t keys = shape_.key_block_bytes(dim);
      const size_t values = size_t(kKeyBlock) * shape_.value_bytes(dim);
      for (int h = 0; h < shape_.layers[l].heads; ++h) {
        std::memcpy(out, key_block(l, h, slot), keys);
        std::memcpy(out + keys, value(l, h, slot), values);
        out += keys + values;
      }
    }
  }
}

void State::load(const uint8_t* in, size_t bytes) {
  const size_t block = saved_bytes(kKeyBlock);
  if (block == 0) throw std::invalid_argument("load: the program keeps nothing of a position");
  if (length_ % kKeyBlock || bytes == 0 || bytes % block)
    throw std::invalid_argument("load: expected whole blocks of 16 positions after whole blocks");
  const size_t blocks = bytes / block;
  if (blocks > size_t(capacity_ - length_) / kKeyBlock)
    throw std::overflow_error("load: " + std::to_string(blocks * kKeyBlock) + " positions after " +
                              std::to_string(length_) + " exceed the capacity of " +
                              std::to_string(capacity_));
  const int end = length_ + int(blocks) * kKeyBlock;
  ensure(end);
  for (int slot = length_; slot < end; slot += kKeyBlock) {
    for (int l = 0; l < int(shape_.layers.size()); ++l) {
      const int dim = shape_.layers[l].head_dim;
      const size_t keys = shape_.key_block_bytes(dim);
      const size_t values = size_t(kKeyBlock) * shape_.value_bytes(dim);
      for (int h = 0; h < shape_.layers[l].heads; ++h) {
        std::memcpy(key_block(l, h, slot), in, keys);
        std::memcpy(value(l, h, slot), in + keys, values);
        in += keys + values;
      }
    }
  }
  length_ = end;
  pending_rows_.clear();
  pending_parents_.clear();
}

void State::poison() {
  const int end = int(chunks_.size()) * kChunk;
  for (int slot = length_; slot < end; ++slot) {
    for (int l = 0; l < int(shape_.layers.size()); ++l) {
      const int dim = shape_.layers[l].head_dim;
      const size_t lines = shape_.key_block_bytes(dim) / 32;  // 16-bit lines of 16 keys
      for (int h = 0; h < shape_.layers[l].heads; ++h) {
        std::memset(value(l, h, slot), 0xff, shape_.value_bytes(dim));
        uint8_t* block = key_block(l, h, slot);
        if (shape_.type == KvType::F16) {
          for (size_t i = 0; i < lines; ++i)
            std::memset(block + 32 * i + 2 * (slot % kKeyBlock), 0xff, 2);
        } else {  // the scales alone make every value NaN
          for (int i = 0; i < dim / 32; ++i)
            std::memset(block + 16 * dim + 32 * i + 2 * (slot % kKeyBlock), 0xff, 2);
        }
      }
    }
  }
}

void State::fill(int length) {
  if (length < 0 || length > capacity_)
    throw std::invalid_argument("fill: the length must be within the capacity");
  ensure(length);
  for (uint8_t* chunk : chunks_) std::memset(chunk, 0x11, shape_.chunk_bytes);
  length_ = length;
  pending_rows_.clear();
  pending_parents_.clear();
}

std::vector<uint8_t> State::bytes_at(int slot) const {
  std::vector<uint8_t> out;
  const int lane = slot % kKeyBlock;
  for (int l = 0; l < int(shape_.layers.size()); ++l) {
    const int dim = shape_.layers[l].head_dim;
    for (int h = 0; h < shape_.layers[l].heads; ++h) {
      const uint8_t* block = key_block(l, h, slot);
      const int width = shape_.type == KvType::F16 ? 2 : 1;
      for (int d = 0; d < dim; ++d)
        out.insert(out.end(), block + width * (16 * d + lane), block + width * (16 * d + lane + 1));
      if (shape_.type == KvType::Q8_0)
        for (int i = 0; i < dim / 32; ++i) {
          const uint8_t* s = block + 16 * dim + 32 * i + 2 * lane;
          out.insert(out.end(), s, s + 2);
        }
      const uint8_t* v = value(l, h, slot);
      out.insert(out.end(), v, v + shape_.value_bytes(dim));
    }
  }
  return out;
}

}  // namespace divine
