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

void rotate(float* x, const RopeSpec& rope, const float* c, const float* s) {
  const int half = rope.dims / 2;
  for (int i = 0; i < half; ++i) {
    float& a = x[rope.half ? i : 2 * i];
    float& b = x[rope.half ? i + half : 2 * i + 1];
    const float a0 = a, b0 = b;
    a = a0 * c[i] - b0 * s[i];
    b = a0 * s[i] + b0 * c[i];
  }
}

int first_visible(const AttentionOp& op, int position) {
  return op.window > 0 ? std::max(0, position - op.window + 1) : 0;
}

}  // namespace

void Pass::plan_attention() {
  size_t parts = 0;
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
    parts = std::max(parts, size_t(in_->rows) * op->heads * plan.splits * (op->head_dim + 2));
    for (AttentionScratch& s : scratch_) {
      s.scores.resize(size_t(kQueries) * kSplit);
      s.part.resize(std::max(s.part.size(), size_t(kQueryTile) * op->head_dim));
      s.keys.resize(std::max(s.keys.size(), size_t(34) * op->head_dim));
      s.values.resize(kSplit);
    }
  }
  if (parts_.size() < parts) parts_.resize(parts);
}

float* Pass::part(const AttentionOp& op, const AttentionPlan& plan, int row, int head, int split) {
  const size_t at = (size_t(row) * op.heads + head) * plan.splits + (plan.by_split ? split : 0);
  return parts_.data() + at * (op.head_dim + 2);
}

// Norms and turns queries (with the score's scale) and keys; writes keys and values to their slots.
void Pass::rotate_and_store(const AttentionOp& op, int thread) {
  const int group = op.heads / op.kv_heads, dim = op.head_dim;
  const auto weight = [&](const NormSpec& n) {
    return n.weight >= 0 ? ex_.vectors_[n.weight].data() : nullptr;
  };
  for (int u; (u = take(thread, in_->rows * op.kv_heads)) >= 0;) {
    const int r = u / op.kv_heads, h = u % op.kv_heads;
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
        std::fill(p, p + op.head_dim + 2, 0.0f);
        p[0] = -std::numeric_limits<float>::infinity();
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
  const float* q;
  float *scores, *part;
  int first, count;  // visible keys of the split
};

// Adds one split to what came before: both sides are scaled to the larger maximum.
void merge(const KernelTable& k, float* p, float max, float sum, const float* values, int dim) {
  const float top = max > p[0] ? max : p[0];
  const float a = k.exp1(p[0] - top), b = k.exp1(max - top);
  p[1] = p[1] * a + sum * b;
  k.scale_add(p + 2, a, values, b, dim);
  p[0] = top;
}

// One split of 256 logical positions of one sequence, as one key/value head sees it.
class Split {
 public:
  Split(const KernelTable& k, const AttentionOp& op, const SequenceRows& rows, int kv_head,
        int number, AttentionScratch& scratch)
      : k_(k),
        op_(op),
        state_(*rows.state),
        length_(rows.length),
        kv_head_(kv_head),
        base_(number * kSplit),
        scratch_(scratch) {}

  int base() const { return base_; }
  // Whether rows of any shape may share this split's blocks.
  bool committed() const { return base_ + kSplit <= length_; }

  // Attends for queries that see the cache as the row at `place` does.
  void attend(const RowPlace& place, Query* queries, int n) const {
    int first = kSplit, count = 0;
    for (int i = 0; i < n; ++i) {
      first = std::min(first, queries[i].first);
      count = std::max(count, queries[i].count);
    }
    for (int b = first / kKeyBlock; b * kKeyBlock < count; ++b)
      score(block(place, b, count), b, queries, n);
    for (int j = first; j < count; ++j)
      scratch_.values[size_t(j)] = state_.value(op_.layer, kv_head_, slot(place, base_ + j));
    for (int i = 0; i < n; i += kQueryTile) mix(queries + i, std::min(kQueryTile, n - i));
  }

 private:
  int slot(const RowPlace& p, int position) const {
    return position < length_ || p.slots.empty() ? position : p.slots[position - length_];
  }

  // Sixteen keys: in place where they are committed or on the chain, else gathered lane by lane.
  const uint8_t* block(const RowPlace& p, int number, int count) const {
    const int begin = base_ + number * kKeyBlock;
    if (p.slots.empty() || begin + kKeyBlock <= length_)
      return state_.key_block(op_.layer, kv_head_, begin);
    for (int lane = 0; lane < std::min(kKeyBlock, count - number * kKeyBlock); ++lane) {
      const int from = slot(p, begin + lane);
      copy_key_lane(state_.shape().type, op_.head_dim, state_.key_block(op_.layer, kv_head_, from),
                    from % kKeyBlock, scratch_.keys.data(), lane);
    }
    return scratch_.keys.data();
  }

  void score(const uint8_t* keys, int number, const Query* queries, int n) const {
    for (int i = 0; i < n; i += kQueryTile) {
      const int m = std::min(kQueryTile, n - i);
      const float* q[kQueryTile];
      float* out[kQueryTile];
      for (int j = 0; j < m; ++j) {
        q[j] = queries[i + j].q;
        out[j] = queries[i + j].scores + number * kKeyBlock;
      }
      k_.scores(state_.shape().type, keys, op_.head_dim, q, m, out);
    }
  }

  // Softmax and weighted values of up to six queries, added to what they have so far.
  void mix(const Query* queries, int n) const {
    const int dim = op_.head_dim;
    const float* p[kQueryTile];
    float* out[kQueryTile];
    int firsts[kQueryTile], counts[kQueryTile];
    float max[kQueryTile], sum[kQueryTile];
    for (int j = 0; j < n; ++j) {
      const Query& q = queries[j];
      k_.softmax(q.scores, q.first, q.count, op_.softcap, &max[j], &sum[j]);
      p[j] = q.scores;
      firsts[j] = q.first;
      counts[j] = q.count;
      out[j] = scratch_.part.data() + j * dim;
    }
    k_.values(state_.shape().type, scratch_.values.data(), dim, p, firsts, counts, n, out);
    for (int j = 0; j < n; ++j) merge(k_, queries[j].part, max[j], sum[j], out[j], dim);
  }

  const KernelTable& k_;
  const AttentionOp& op_;
  const State& state_;
  const int length_, kv_head_, base_;
  AttentionScratch& scratch_;
};

}  // namespace

// One split for the queries of some rows that read one key/value head. Rows on the chain, and all
// rows where the whole split is committed, share its blocks; the others come one by one.
void Pass::attend_split(const AttentionOp& op, const AttentionPlan& plan,
                        const AttentionPlan::Tile& tile, int kv_head, int number,
                        AttentionScratch& s) {
  const SequenceRows& sr = sequences_[tile.sequence];
  const Split split(k_, op, sr, kv_head, number, s);
  const int group = op.heads / op.kv_heads;
  Query queries[kQueries];
  int n = 0;
  const RowPlace* like = nullptr;
  const auto flush = [&] {
    if (n > 0) split.attend(*like, queries, n);
    n = 0;
  };
  for (const bool sharing : {true, false}) {
    for (int i = 0; i < tile.count; ++i) {
      const int r = sr.rows[tile.first + i];
      const RowPlace& place = places_[r];
      if ((split.committed() || place.slots.empty()) != sharing) continue;
      const int count = std::min(place.position + 1 - split.base(), kSplit);
      const int first = std::max(0, first_visible(op, place.position) - split.base());
      for (int g = 0; g < group && first < count; ++g) {
        if (n == kQueries) flush();
        const int head = kv_head * group + g;
        queries[n] = {row(op.q, r) + head * op.head_dim, s.scores.data() + n * kSplit,
                      part(op, plan, r, head, number), first, count};
        ++n;
        like = &place;
      }
      if (!sharing) flush();
    }
    flush();
  }
}

// Puts the splits together, divides by the sums and, where asked, quantizes for the next product.
void Pass::gather_outputs(const AttentionOp& op, const AttentionPlan& plan, bool quantize,
                          int thread) {
  const int dim = op.head_dim;
  for (int r; (r = take(thread, in_->rows)) >= 0;) {
    float* out = row(op.out, r);
    for (int h = 0; h < op.heads; ++h) {
      float* p = part(op, plan, r, h, 0);
      for (int s = 1; s < plan.splits; ++s) {
        const float* next = part(op, plan, r, h, s);
        if (next[0] == -std::numeric_limits<float>::infinity() && next[1] == 0.0f) continue;
        merge(k_, p, next[0], next[1], next + 2, dim);
      }
      for (int i = 0; i < dim; ++i) out[h * dim + i] = p[2 + i] / p[1];
    }
    if (quantize) quantize_range(out, 0, op.heads * dim, hidden_.rows[size_t(r)]);
  }
}

}  // namespace divine
