// The head of a pass: logits of the rows that want them, in chunks of 16 groups, and what is kept
// of them: the largest with its id, the log of the sum of exponentials, the top k, or all. With a
// shortlist only groups that hold a listed token are read; the other logits are minus infinity.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "math.h"
#include "os.h"
#include "pass.h"
#include "pass_tiles.h"

namespace divine {
namespace {

constexpr int kChunkGroups = 16, kChunkOutputs = kChunkGroups * kLanes;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

size_t chunks_of(int groups) { return size_t(groups + kChunkGroups - 1) / kChunkGroups; }

// The first of the largest values; NaN is never larger, and 0 is the answer where nothing is.
int largest(const float* v, int n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, kMinusInfinity);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lanes[j] = v[i + j] > lanes[j] ? v[i + j] : lanes[j];
  float max = kMinusInfinity;
  for (const float x : lanes) max = x > max ? x : max;
  for (; i < n; ++i) max = v[i] > max ? v[i] : max;
  if (max == kMinusInfinity) return 0;
  int best = 0;
  while (v[best] != max) ++best;
  return best;
}

}  // namespace

int Pass::head_groups() const {
  const Matrix& m = ex_.matrices_[std::get<HeadOp>(ex_.ops_.back()).matrix];
  const Shortlist* s = in_->shortlist;
  if (s == nullptr) return m.groups;
  return int(s->groups.size()) + (s->packed ? s->packed->matrix.groups : 0);
}

// Group number i of the head: packed rows come first.
HeadGroup Pass::head_group(const Matrix& m, int i) const {
  const Shortlist* s = in_->shortlist;
  const Matrix* from = &m;
  if (s != nullptr && s->packed) {
    if (i >= s->packed->matrix.groups) {
      i -= s->packed->matrix.groups;
    } else {
      from = &s->packed->matrix;
      s = nullptr;
    }
  }
  if (s != nullptr) return {from, s->groups[size_t(i)], s->listed[size_t(i)]};
  const int count =
      std::min(kLanes, std::min(from->out, from == &m ? ex_.vocabulary_ : from->out) - kLanes * i);
  return {from, i, (1u << count) - 1};
}

int Pass::head_id(int i, int lane) const {
  const Shortlist* s = in_->shortlist;
  if (s == nullptr) return kLanes * i + lane;
  if (s->packed) {
    const auto at = size_t(kLanes * i + lane);
    if (i < s->packed->matrix.groups)
      return at < s->packed->ids.size() ? s->packed->ids[at] : ex_.vocabulary_;
    i -= s->packed->matrix.groups;
  }
  return kLanes * s->groups[size_t(i)] + lane;
}

// Which of n outputs from group `first` on is the largest; of equal ones that of the lowest token.
int Pass::head_best(int first, const float* v, int n) const {
  int best = largest(v, n);
  if (in_->shortlist == nullptr || !in_->shortlist->packed) return best;
  const auto id = [&](int j) { return head_id(first + j / kLanes, j % kLanes); };
  for (int j = best + 1; j < n; ++j)
    if (v[j] == v[best] && id(j) < id(best)) best = j;
  return best;
}

void Pass::prepare_head() {
  const auto& op = std::get<HeadOp>(ex_.ops_.back());
  const Executor::Value& x = ex_.values_[op.x];
  head_rows_.clear();
  for (const auto* list : {&in_->best, &in_->top, &in_->logits})
    head_rows_.insert(head_rows_.end(), list->begin(), list->end());
  std::sort(head_rows_.begin(), head_rows_.end());
  head_rows_.erase(std::unique(head_rows_.begin(), head_rows_.end()), head_rows_.end());
  const size_t rows = head_rows_.size();
  keep_.assign(rows, 0);
  for (const auto* list : {&in_->top, &in_->logits})
    for (const int r : *list)
      keep_[size_t(std::lower_bound(head_rows_.begin(), head_rows_.end(), r) -
                   head_rows_.begin())] = 1;
  if (in_->shortlist && in_->shortlist->packed &&
      in_->shortlist->packed->source != ex_.matrices_[op.matrix].data)
    throw std::invalid_argument("a shortlist was packed from another output matrix");
  const size_t chunks = chunks_of(head_groups());
  chunk_max_.resize(rows * chunks);
  chunk_sum_.resize(rows * chunks);
  chunk_best_.resize(rows * chunks);
  if (in_->top.empty() && in_->logits.empty())
    std::vector<float>().swap(kept_);
  else if (kept_.size() < rows * size_t(ex_.vocabulary_))
    kept_.resize(rows * size_t(ex_.vocabulary_));
  // What no group brings is minus infinity; whoever wants the top few looks at listed ones only.
  if (in_->shortlist && !in_->logits.empty())
    std::fill_n(kept_.begin(), rows * size_t(ex_.vocabulary_), kMinusInfinity);
  for (auto& outputs : outputs_)
    outputs.resize(
        std::max({outputs.size(), rows * kChunkOutputs, size_t(in_->rows) * kPairOutputs}));
  head_x_.resize(rows * size_t(x.stride));
  if (rows > head_capacity_) {
    os::release(head_input_.memory, head_input_.stride * head_capacity_);
    head_input_.stride = activation_stride(ex_.widest_);
    head_input_.memory = static_cast<uint8_t*>(os::reserve(head_input_.stride * rows));
    head_capacity_ = rows;
  }
  head_input_.layout(x.dim, int(rows), head_x_.data(), x.stride);
}

bool Pass::step(const HeadOp& op, int, int thread) {
  if (head_inputs(op, thread)) return true;
  if (!head_rows_.empty()) head_chunks(op, thread);
  return false;
}

// Norms and quantizes the head's rows, and hands out the tap "final".
bool Pass::head_inputs(const HeadOp& op, int thread) {
  const Executor::Value& x = ex_.values_[op.x];
  const float* weight = op.norm.weight >= 0 ? ex_.vectors_[op.norm.weight].data() : nullptr;
  const auto norm = [&](int r, float* to) {
    if (op.norm.eps >= 0.0f)
      k_.rms_norm(row(op.x, r), weight, op.norm.eps, x.dim, to);
    else
      std::memcpy(to, row(op.x, r), sizeof(float) * size_t(x.dim));
  };
  const auto prepare = [&](int i) {
    float* to = head_x_.data() + size_t(i) * x.stride;
    norm(head_rows_[size_t(i)], to);
    if (x.dim % 32 == 0) quantize_range(to, 0, x.dim, head_input_.rows[size_t(i)]);
  };
  if (between(thread, int(head_rows_.size()), x.dim, prepare)) return true;
  for (size_t t = 0; thread == 0 && t < in_->taps.size(); ++t)
    for (size_t j = 0; in_->taps[t].first == kFinalTap && j < in_->taps[t].second.size(); ++j)
      norm(in_->taps[t].second[j], out_->taps[t] + j * size_t(x.dim));
  return false;
}

void Pass::head_chunks(const HeadOp& op, int thread) {
  const Matrix& m = ex_.matrices_[op.matrix];
  const float* bias = op.bias >= 0 ? ex_.vectors_[op.bias].data() : nullptr;
  const int rows = int(head_rows_.size()), vocabulary = ex_.vocabulary_, groups = head_groups();
  const int chunks = int(chunks_of(groups));
  float* scratch = outputs_[size_t(thread)].data();
  for (int c; (c = take(thread, chunks)) >= 0;) {
    const int begin = c * kChunkGroups, end = std::min(begin + kChunkGroups, groups);
    for (int i = begin; i < end; ++i) {
      const HeadGroup g = head_group(m, i);
      int ids[kLanes];
      for (int j = 0; j < kLanes; ++j) ids[j] = head_id(i, j);
      // The tokens follow one another, and no other group brings one of them.
      const bool together = in_->shortlist == nullptr || !in_->shortlist->packed;
      const int count = std::min(kLanes, vocabulary - ids[0]);
      group_times_rows(
          *g.matrix, g.group, head_input_.rows.data(), rows, [&](int r, const float* v) {
            float* to = scratch + size_t(r) * kChunkOutputs + (i - begin) * kLanes;
            for (int j = 0; j < kLanes; ++j) {
              const bool listed = g.listed >> j & 1;
              to[j] = !listed ? kMinusInfinity : bias != nullptr ? v[j] + bias[ids[j]] : v[j];
            }
            if (!keep_[size_t(r)]) return;
            float* kept = kept_.data() + size_t(r) * vocabulary;
            if (together)
              std::memcpy(kept + ids[0], to, sizeof(float) * size_t(count));
            else
              for (int j = 0; j < kLanes; ++j)
                if (g.listed >> j & 1) kept[ids[j]] = to[j];
          });
    }
    const int outputs = (end - begin) * kLanes;
    for (int r = 0; r < rows; ++r) {
      const float* v = scratch + size_t(r) * kChunkOutputs;
      const int best = head_best(begin, v, outputs);
      const float max = v[best] == v[best] ? v[best] : kMinusInfinity;
      const size_t at = size_t(r) * chunks + c;
      chunk_best_[at] = head_id(begin + best / kLanes, best % kLanes);
      chunk_max_[at] = max;
      chunk_sum_[at] = k_.sum_exp(v, outputs, max);
    }
  }
}

// Puts the chunks together, in order, and selects what each row wants.
void Pass::finish_head() {
  const int vocabulary = ex_.vocabulary_;
  const size_t chunks = chunks_of(head_groups());
  struct Summary {
    int id;
    float logit, log_sum_exp;
  };
  const auto index_of = [&](int r) {
    return size_t(std::lower_bound(head_rows_.begin(), head_rows_.end(), r) - head_rows_.begin());
  };
  const auto summary = [&](size_t i) -> Summary {
    Summary s{chunk_best_[i * chunks], kMinusInfinity, 0.0f};
    for (size_t c = 0; c < chunks; ++c) {
      const float logit = chunk_max_[i * chunks + c];
      const int id = chunk_best_[i * chunks + c];
      if (logit > s.logit || (logit == s.logit && id < s.id)) s.logit = logit, s.id = id;
    }
    float sum = 0.0f;
    for (size_t c = 0; c < chunks; ++c)
      sum = sum + chunk_sum_[i * chunks + c] * k_.exp1(chunk_max_[i * chunks + c] - s.logit);
    // A sum of at least exp(0), unless a logit was NaN or infinite: then it must show.
    const bool usual = sum >= 1.0f && sum <= 1e30f;
    s.log_sum_exp = s.logit + (usual ? float(natural_log(double(sum))) : __builtin_nanf(""));
    return s;
  };
  for (size_t j = 0; j < in_->best.size(); ++j) {
    const Summary s = summary(index_of(in_->best[j]));
    out_->best_ids[j] = s.id;
    out_->best_logits[j] = s.logit;
    out_->log_sum_exp[j] = s.log_sum_exp;
  }
  for (size_t j = 0; j < in_->logits.size(); ++j)
    std::memcpy(out_->logits + j * size_t(vocabulary),
                kept_.data() + index_of(in_->logits[j]) * size_t(vocabulary),
                sizeof(float) * size_t(vocabulary));
  std::vector<int> ids;
  for (size_t j = 0; j < in_->top.size(); ++j) {
    const size_t i = index_of(in_->top[j]);
    const float* v = kept_.data() + i * size_t(vocabulary);
    out_->top_log_sum_exp[j] = summary(i).log_sum_exp;
    if (in_->shortlist) {
      ids = in_->shortlist->ids;
    } else {
      ids.resize(size_t(vocabulary));
      std::iota(ids.begin(), ids.end(), 0);
    }
    const auto value = [&](int id) {  // NaN sorts last; the sum shows it
      return v[id] == v[id] ? v[id] : kMinusInfinity;
    };
    std::partial_sort(ids.begin(), ids.begin() + in_->k, ids.end(), [&](int a, int b) {
      return value(a) != value(b) ? value(a) > value(b) : a < b;
    });
    for (int n = 0; n < in_->k; ++n) {
      out_->top_ids[j * size_t(in_->k) + n] = ids[n];
      out_->top_logits[j * size_t(in_->k) + n] = v[ids[n]];
    }
  }
}

}  // namespace divine
