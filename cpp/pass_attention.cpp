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
    const int group = op->heads / op->kv_heads, most = std::max(1, 96 / group);
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
      s.scores.resize(std::max(s.scores.size(), size_t(most) * group * kSplit));
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

}  // namespace

// One split of 256 logical positions for the queries of some rows that read one key/value head.
// Rows on the chain, and all rows where the whole split is committed, read the cache in place and
// share its blocks; other rows gather their own tail.
void Pass::attend_split(const AttentionOp& op, const AttentionPlan& plan,
                        const AttentionPlan::Tile& tile, int kv_head, int split,
                        AttentionScratch& s) {
  const SequenceRows& sr = sequences_[tile.sequence];
  const State& state = *sr.state;
  const KvType type = state.shape().type;
  const int base = split * kSplit, group = op.heads / op.kv_heads, dim = op.head_dim;
  const bool committed = base + kSplit <= sr.length;

  const auto slot_of = [&](const RowPlace& p, int position) {
    return position < sr.length || p.slots.empty() ? position : p.slots[position - sr.length];
  };
  const auto block_of = [&](const RowPlace& p, int block, int count) -> const uint8_t* {
    const int begin = base + block * kKeyBlock, end = begin + kKeyBlock;
    if (committed || p.slots.empty() || end <= sr.length)
      return state.key_block(op.layer, kv_head, begin);
    for (int lane = 0; lane < std::min(kKeyBlock, count - block * kKeyBlock); ++lane) {
      const int slot = slot_of(p, begin + lane);
      copy_key_lane(type, dim, state.key_block(op.layer, kv_head, slot), slot % kKeyBlock,
                    s.keys.data(), lane);
    }
    return s.keys.data();
  };
  const auto run = [&](const RowPlace& place, Query* queries, int n) {
    int first = kSplit, count = 0;
    for (int i = 0; i < n; ++i) {
      first = std::min(first, queries[i].first);
      count = std::max(count, queries[i].count);
    }
    for (int j = first; j < count; ++j)
      s.values[size_t(j)] = state.value(op.layer, kv_head, slot_of(place, base + j));
    for (int b = first / kKeyBlock; b * kKeyBlock < count; ++b) {
      const uint8_t* block = block_of(place, b, count);
      for (int i = 0; i < n; i += kQueryTile) {
        const int m = std::min(kQueryTile, n - i);
        const float* q[kQueryTile];
        float* out[kQueryTile];
        for (int j = 0; j < m; ++j) {
          q[j] = queries[i + j].q;
          out[j] = queries[i + j].scores + b * kKeyBlock;
        }
        k_.scores(type, block, dim, q, m, out);
      }
    }
    for (int i = 0; i < n; i += kQueryTile) {
      const int m = std::min(kQueryTile, n - i);
      const float* p[kQueryTile];
      float* out[kQueryTile];
      int firsts[kQueryTile], counts[kQueryTile];
      float max[kQueryTile], sum[kQueryTile];
      for (int j = 0; j < m; ++j) {
        const Query& q = queries[i + j];
        k_.softmax(q.scores, q.first, q.count, op.softcap, &max[j], &sum[j]);
        p[j] = q.scores;
        firsts[j] = q.first;
        counts[j] = q.count;
        out[j] = s.part.data() + j * dim;
      }
      k_.values(type, s.values.data(), dim, p, firsts, counts, m, out);
      for (int j = 0; j < m; ++j) merge(k_, queries[i + j].part, max[j], sum[j], out[j], dim);
    }
  };

  Query queries[96 + kQueryTile];
  const int capacity = 96 + kQueryTile;
  int shared = 0;
  const RowPlace* on_chain = nullptr;
  float* scores = s.scores.data();
  const auto flush = [&] {
    if (shared > 0) run(*on_chain, queries, shared);
    shared = 0;
    scores = s.scores.data();
  };
  for (int pass = 0; pass < 2; ++pass) {  // rows that share blocks, then the others one by one
    for (int i = 0; i < tile.count; ++i) {
      const int r = sr.rows[tile.first + i];
      const RowPlace& place = places_[r];
      if ((committed || place.slots.empty()) != (pass == 0)) continue;
      const int count = std::min(place.position + 1 - base, kSplit);
      const int first = std::max(0, first_visible(op, place.position) - base);
      if (first >= count) continue;
      for (int g = 0; g < group; ++g) {
        if (shared == capacity || size_t(scores - s.scores.data()) + kSplit > s.scores.size())
          flush();
        const int head = kv_head * group + g;
        queries[shared++] = {row(op.q, r) + head * dim, scores, part(op, plan, r, head, split),
                             first, count};
        scores += kSplit;
        on_chain = &place;
      }
      if (pass == 1) flush();
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
