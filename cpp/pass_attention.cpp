// Attention of a pass: rotate and store, scores and weighted values by split, and their sum.
//
// Logical positions are cut every 256 keys. Each split gives a maximum, a sum and weighted values;
// splits are added in order with one formula, whether one thread walks them all or several do.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "pass.h"

namespace divine {
namespace {

constexpr int kQueries = 96;  // most queries that share the blocks of a split
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Turns each pair (a, b) by its angle; written so that the compiler sees that nothing overlaps.
void rotate(float* x, const RopeSpec& rope, const float* __restrict c, const float* __restrict s) {
  const int half = rope.dims / 2;
  if (rope.half) {
    float* __restrict low = x, * __restrict high = x + half;
    for (int i = 0; i < half; ++i) {
      const float a = low[i], b = high[i];
      low[i] = a * c[i] - b * s[i];
      high[i] = a * s[i] + b * c[i];
    }
  } else {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * c[i] - b * s[i];
      x[2 * i + 1] = a * s[i] + b * c[i];
    }
  }
}

int first_visible(const AttentionOp& op, int position) {
  return op.window > 0 ? std::max(0, position - op.window + 1) : 0;
}

}  // namespace

void Pass::plan_attention() {
  size_t parts = 0;
  score_stride_ = kSplit;
  for (const SequenceRows& sr : sequences_)
    if (sr.chain < int(sr.rows.size()))
      score_stride_ = std::max(score_stride_, kSplit + sr.rows.size() + kKeyBlock);
  score_stride_ = (score_stride_ + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  for (size_t i = 0; i < ex_.ops_.size(); ++i) {
    const auto* op = std::get_if<AttentionOp>(&ex_.ops_[i]);
    if (op == nullptr) continue;
    AttentionPlan& plan = plans_[i];
    plan.tiles.clear();
    const int group = op->heads / op->kv_heads, most = std::max(1, kQueries / group);
    int longest = 1;
    for (int s = 0; s < int(sequences_.size()); ++s) {
      const SequenceRows& sr = sequences_[s];
      const int rows = int(sr.rows.size());
      for (int r = 0; r < rows; r += most) plan.tiles.push_back({s, r, std::min(most, rows - r)});
      for (const int r : sr.rows) longest = std::max(longest, places_[r].position + 1);
    }
    const int splits = (longest + kSplit - 1) / kSplit;
    plan.by_split = splits > 1 && int(plan.tiles.size()) * op->kv_heads < 4 * threads_;
    plan.splits = plan.by_split ? splits : 1;
    parts = std::max(
        parts, size_t(in_->rows) * op->heads * plan.splits * size_t(kPartValues + op->head_dim));
    for (AttentionScratch& s : scratch_) {
      s.scores.resize(size_t(kQueries) * score_stride_);
      s.part.resize(std::max(s.part.size(), size_t(kQueryTile) * op->head_dim));
      s.values.resize(kSplit);
      s.tail.resize(kSplit);
    }
  }
  if (parts_.size() < parts) parts_.resize(parts);
}

float* Pass::part(const AttentionOp& op, const AttentionPlan& plan, int row, int head, int split) {
  const size_t at = (size_t(row) * op.heads + head) * plan.splits + (plan.by_split ? split : 0);
  return parts_.data() + at * size_t(kPartValues + op.head_dim);
}

// For one row and one key/value head: norms and turns its queries (with the score's scale) and its
// key; writes key and value to their slots.
void Pass::rotate_and_store(const AttentionOp& op, int r, int h) {
  const int group = op.heads / op.kv_heads, dim = op.head_dim;
  const auto weight = [&](const NormSpec& n) {
    return n.weight >= 0 ? ex_.vectors_[n.weight].data() : nullptr;
  };
  const RowPlace& place = places_[r];
  const RopeSpec* rope = op.rope >= 0 ? &ex_.ropes_[op.rope] : nullptr;
  const float* c = rope ? cos_[op.rope].data() + size_t(r) * (rope->dims / 2) : nullptr;
  const float* s = rope ? sin_[op.rope].data() + size_t(r) * (rope->dims / 2) : nullptr;
  float* k = row(op.k, r) + h * dim;
  if (op.k_norm.eps >= 0.0f) k_.rms_norm(k, weight(op.k_norm), op.k_norm.eps, dim, k);
  if (rope) rotate(k, *rope, c, s);
  const SequenceRows& sr = sequences_[place.sequence];
  const int slot = sr.length + place.index;
  const KvType type = sr.state->shape().type;
  k_.store_key(type, k, dim, slot % kKeyBlock, sr.state->key_block(op.layer, h, slot));
  k_.store_value(type, row(op.v, r) + h * dim, dim, sr.state->value(op.layer, h, slot));
  for (int g = 0; g < group; ++g) {
    float* q = row(op.q, r) + (h * group + g) * dim;
    if (op.q_norm.eps >= 0.0f) k_.rms_norm(q, weight(op.q_norm), op.q_norm.eps, dim, q);
    if (rope) rotate(q, *rope, c, s);
    for (int i = 0; i < dim; ++i) q[i] = q[i] * op.scale;
  }
}

void Pass::attend(const AttentionOp& op, const AttentionPlan& plan, int thread) {
  const int tiles = int(plan.tiles.size()), per_tile = op.kv_heads * plan.splits;
  for (int u; (u = take(thread, tiles * per_tile)) >= 0;) {
    const AttentionPlan::Tile& tile = plan.tiles[u / per_tile];
    const int kv_head = u % per_tile / plan.splits, split = u % plan.splits;
    const SequenceRows& sr = sequences_[tile.sequence];
    const int group = op.heads / op.kv_heads;
    int longest = 0;
    for (int i = 0; i < tile.count; ++i) {
      const int r = sr.rows[tile.first + i];
      longest = std::max(longest, places_[r].position + 1);
      for (int g = 0; g < group; ++g) {
        float* p = part(op, plan, r, kv_head * group + g, split);
        p[0] = kLowest, p[1] = 0.0f;
      }
    }
    const int splits = (longest + kSplit - 1) / kSplit;
    const int begin = plan.by_split ? split : 0;
    const int end = plan.by_split ? std::min(split + 1, splits) : splits;
    for (int s = begin; s < end; ++s)
      attend_split(op, plan, tile, kv_head, s, scratch_[size_t(thread)]);
  }
}

namespace {

struct Query {
  const RowPlace* place;
  float* part;
  int first, count;  // visible keys of the split
};

// Adds one split to what came before: both sides are scaled to the larger maximum.
void merge(const KernelTable& k, float* p, float max, float sum, const float* values, int dim) {
  float* to = p + kPartValues;
  if (p[0] == kLowest && p[1] == 0.0f) {
    // The first: its scale is 1, that of nothing 0. Adding 0 makes -0 what a sum would make it.
    if (max > kLowest && max <= std::numeric_limits<float>::max()) {
      for (int i = 0; i < dim; ++i) to[i] = values[i] + 0.0f;
      p[0] = max, p[1] = sum;
      return;
    }
    std::fill(to, to + dim, 0.0f);
  }
  const float top = max > p[0] ? max : p[0];
  const float a = k.exp1(p[0] - top), b = k.exp1(max - top);
  p[1] = p[1] * a + sum * b;
  k.scale_add(to, a, values, b, dim);
  p[0] = top;
}

// One split of 256 logical positions of one sequence, as one key/value head sees it. Committed
// positions and rows of the chain lie where their position says; those rows of a tree that are off
// the chain have slots further on. A key's score does not depend on its place, so all queries share
// the scores of all slots, and each row off the chain then picks its own.
class Split {
 public:
  Split(const KernelTable& k, const AttentionOp& op, const SequenceRows& rows, int kv_head,
        int number, size_t score_stride, AttentionScratch& scratch)
      : k_(k),
        op_(op),
        state_(*rows.state),
        kv_head_(kv_head),
        base_(number * kSplit),
        length_(rows.length),
        shared_(rows.chain == int(rows.rows.size()) ? kSplit
                                                    : std::clamp(length_ - base_, 0, kSplit)),
        stride_(score_stride),
        scratch_(scratch) {}

  int base() const { return base_; }

  void add(const Query& query, const float* q) {
    queries_[n_] = query;
    q_[n_] = q;
    scores_[n_] = scratch_.scores.data() + size_t(n_) * stride_;
    ++n_;
  }
  bool full() const { return n_ == kQueries; }

  // Attends for what was added.
  void attend() {
    int first = kSplit, count = 0, end = 0;
    for (int i = 0; i < n_; ++i) {
      const Query& q = queries_[i];
      first = std::min(first, q.first);
      count = std::max(count, q.count);
      end = std::max(end, slot(*q.place, q.count - 1) + 1);
    }
    for (int b = first / kKeyBlock; b * kKeyBlock < end; ++b) {
      const uint8_t* keys = state_.key_block(op_.layer, kv_head_, base_ + b * kKeyBlock);
      for (int i = 0; i < n_; i += kQueryTile)
        k_.scores(state_.shape().type, keys, op_.head_dim, q_ + i, std::min(kQueryTile, n_ - i),
                  scores_ + i, b * kKeyBlock);
    }
    if (first < shared_) {
      const uint8_t* value = state_.value(op_.layer, kv_head_, base_);
      const size_t bytes = state_.shape().value_bytes(op_.head_dim);
      for (int j = first; j < std::min(count, shared_); ++j)
        scratch_.values[size_t(j)] = value + size_t(j) * bytes;
    }
    for (int i = 0; i < n_; i += kQueryTile) mix(i, std::min(kQueryTile, n_ - i));
    n_ = 0;
  }

 private:
  // Where key j of the split lies, counted from its beginning; never before j.
  int slot(const RowPlace& p, int j) const {
    return base_ + j < length_ || p.slots.empty() ? j : p.slots[base_ + j - length_] - base_;
  }

  // Softmax and weighted values of up to six queries, added to what they have so far.
  void mix(int begin, int n) {
    const int dim = op_.head_dim;
    const KvType type = state_.shape().type;
    const float* p[kQueryTile];
    float* out[kQueryTile];
    int firsts[kQueryTile], counts[kQueryTile];
    float max[kQueryTile], sum[kQueryTile];
    std::fill(scratch_.part.begin(), scratch_.part.begin() + n * dim, 0.0f);
    for (int j = 0; j < n; ++j) {
      const Query& q = queries_[begin + j];
      float* s = scores_[begin + j];
      for (int i = std::max(q.first, shared_); i < q.count; ++i) s[i] = s[slot(*q.place, i)];
      k_.softmax(s, q.first, q.count, op_.softcap, &max[j], &sum[j]);
      p[j] = s;
      firsts[j] = q.first;
      counts[j] = std::min(q.count, shared_);
      out[j] = scratch_.part.data() + j * dim;
    }
    k_.values(type, scratch_.values.data(), dim, p, firsts, counts, n, out);
    for (int j = 0, same; j < n; j += same) {  // the queries of one row at a time
      const Query& q = queries_[begin + j];
      for (same = 1; j + same < n && queries_[begin + j + same].place == q.place;) ++same;
      if (q.count <= shared_) continue;
      for (int i = 0; i < same; ++i) {
        firsts[j + i] = std::max(q.first, shared_);
        counts[j + i] = q.count;
      }
      for (int i = firsts[j]; i < q.count; ++i)
        scratch_.tail[size_t(i)] = state_.value(op_.layer, kv_head_, base_ + slot(*q.place, i));
      k_.values(type, scratch_.tail.data(), dim, p + j, firsts + j, counts + j, same, out + j);
    }
    for (int j = 0; j < n; ++j) merge(k_, queries_[begin + j].part, max[j], sum[j], out[j], dim);
  }

  const KernelTable& k_;
  const AttentionOp& op_;
  const State& state_;
  const int kv_head_, base_, length_;
  const int shared_;  // keys of the split that lie in one place for all rows
  const size_t stride_;
  AttentionScratch& scratch_;
  int n_ = 0;
  Query queries_[kQueries];
  const float* q_[kQueries];
  float* scores_[kQueries];
};

}  // namespace

// One split for the queries of some rows that read one key/value head.
void Pass::attend_split(const AttentionOp& op, const AttentionPlan& plan,
                        const AttentionPlan::Tile& tile, int kv_head, int number,
                        AttentionScratch& s) {
  const SequenceRows& sr = sequences_[tile.sequence];
  Split split(k_, op, sr, kv_head, number, score_stride_, s);
  const int group = op.heads / op.kv_heads;
  for (int i = 0; i < tile.count; ++i) {
    const int r = sr.rows[tile.first + i];
    const RowPlace& place = places_[r];
    const int count = std::min(place.position + 1 - split.base(), kSplit);
    const int first = std::max(0, first_visible(op, place.position) - split.base());
    for (int g = 0; g < group && first < count; ++g) {
      const int head = kv_head * group + g;
      split.add({&place, part(op, plan, r, head, number), first, count},
                row(op.q, r) + head * op.head_dim);
      if (split.full()) split.attend();
    }
  }
  split.attend();
}

// For one row: puts the splits together, divides by the sums and, where asked, quantizes for the
// next product.
void Pass::gather_outputs(const AttentionOp& op, const AttentionPlan& plan, const Activations* next,
                          int r) {
  const int dim = op.head_dim;
  float* out = row(op.out, r);
  for (int h = 0; h < op.heads; ++h) {
    float* p = part(op, plan, r, h, 0);
    for (int s = 1; s < plan.splits; ++s) {
      const float* other = part(op, plan, r, h, s);
      if (other[0] == kLowest && other[1] == 0.0f) continue;
      merge(k_, p, other[0], other[1], other + kPartValues, dim);
    }
    const float sum = p[1];
    for (int i = 0; i < dim; ++i) out[h * dim + i] = p[kPartValues + i] / sum;
  }
  if (next != nullptr) quantize_range(out, 0, op.heads * dim, next->rows[size_t(r)]);
}

}  // namespace divine
