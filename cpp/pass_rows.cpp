// Checking the rows of a pass and placing each in its sequence.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "math.h"
#include "pass.h"

namespace divine {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_list(const std::vector<int>& rows, int n, const char* name) {
  int last = -1;
  for (const int r : rows) {
    if (r <= last || r >= n)
      refuse(std::string(name) + " rows must ascend within 0.." + std::to_string(n - 1));
    last = r;
  }
}

}  // namespace

void Pass::place_rows() {
  const PassInput& in = *in_;
  const int n = in.rows;
  if (n < 1 || n > ex_.max_rows_)
    refuse("a pass has 1 to " + std::to_string(ex_.max_rows_) + " rows, not " + std::to_string(n));
  if (ex_.given_ && in.vectors == nullptr)
    refuse("the program needs a vector for each row, but rows have none");
  const int states = int(in.states.size());
  sequences_.assign(size_t(states), {});
  places_.assign(size_t(n), {});
  for (int s = 0; s < states; ++s) {
    for (int t = 0; t < s; ++t)
      if (in.states[t] == in.states[s]) refuse("the same state is given twice");
    if (int(in.states[s]->shape().layers.size()) != int(ex_.layer_shapes_.size()))
      refuse("a state belongs to another program");
    for (size_t l = 0; l < ex_.layer_shapes_.size(); ++l) {
      const KvShape::Layer& layer = in.states[s]->shape().layers[l];
      if (layer.heads != ex_.layer_shapes_[l].first ||
          layer.head_dim != ex_.layer_shapes_[l].second)
        refuse("a state belongs to another program");
    }
    sequences_[s].state = in.states[s];
    sequences_[s].length = in.states[s]->length();
  }
  for (int r = 0; r < n; ++r) {
    const std::string name = "row " + std::to_string(r);
    const int s = in.sequences[r], parent = in.parents[r];
    if (s < 0 || s >= states) refuse(name + ": sequence " + std::to_string(s) + " is not given");
    const bool vector = in.takes_vector != nullptr && in.takes_vector[r];
    if (vector && in.vectors == nullptr) refuse(name + ": takes a vector but none are given");
    if (!vector && (in.tokens[r] < 0 || in.tokens[r] >= ex_.vocabulary_))
      refuse(name + ": token " + std::to_string(in.tokens[r]) + " is outside 0.." +
             std::to_string(ex_.vocabulary_ - 1));
    if (parent != -1 && (parent < 0 || parent >= r || in.sequences[parent] != s))
      refuse(name + ": parent " + std::to_string(parent) +
             " must be an earlier row of the same sequence, or -1");
    SequenceRows& sr = sequences_[s];
    RowPlace& p = places_[r];
    p.sequence = s;
    p.index = int(sr.rows.size());
    const RowPlace* up = parent == -1 ? nullptr : &places_[parent];
    p.position = up ? up->position + 1 : sr.length;
    const bool follows = up ? up->index == p.index - 1 : p.index == 0;
    if (follows && sr.chain == p.index) {
      sr.chain = p.index + 1;
    } else {
      if (up && up->slots.empty())
        for (int i = 0; i <= up->index; ++i) p.slots.push_back(sr.length + i);
      else if (up)
        p.slots = up->slots;
      p.slots.push_back(sr.length + p.index);
    }
    if (p.position >= sr.state->capacity())
      throw std::overflow_error(name + ": position " + std::to_string(p.position) +
                                " exceeds the capacity of " + std::to_string(sr.state->capacity()));
    sr.rows.push_back(r);
  }
  check_list(in.best, n, "best");
  check_list(in.top, n, "top");
  check_list(in.logits, n, "logits");
  const int choices = in.shortlist ? int(in.shortlist->ids.size()) : ex_.vocabulary_;
  if (!in.top.empty() && (in.k < 1 || in.k > choices))
    refuse("k must be 1 to " + std::to_string(choices));
  for (const auto& [tap, rows] : in.taps) {
    if (tap != kFinalTap && (tap < 0 || tap >= ex_.taps_)) refuse("unknown tap");
    check_list(rows, n, "tap");
  }
  for (SequenceRows& sr : sequences_)
    if (!sr.rows.empty()) sr.state->ensure(sr.length + int(sr.rows.size()));
}

void Pass::prepare_ropes() {
  const int n = in_->rows;
  cos_.resize(ex_.ropes_.size());
  sin_.resize(ex_.ropes_.size());
  for (size_t i = 0; i < ex_.ropes_.size(); ++i) {
    const RopeSpec& rope = ex_.ropes_[i];
    const int half = rope.dims / 2;
    cos_[i].resize(size_t(n) * half);
    sin_[i].resize(size_t(n) * half);
    for (int r = 0; r < n; ++r) {
      for (int j = 0; j < half; ++j) {
        double s, c;
        sine_cosine(double(places_[r].position) * rope.frequencies[j], &s, &c);
        cos_[i][size_t(r) * half + j] = float(c) * rope.magnitude;
        sin_[i][size_t(r) * half + j] = float(s) * rope.magnitude;
      }
    }
  }
}

void Pass::finish_states(bool completed) {
  for (SequenceRows& sr : sequences_) {
    if (sr.rows.empty()) continue;
    std::vector<int> parents;
    for (const int r : sr.rows) parents.push_back(in_->parents[r]);
    if (completed)
      sr.state->set_pending(sr.rows, std::move(parents));
    else
      sr.state->set_pending({}, {});
  }
}

}  // namespace divine
