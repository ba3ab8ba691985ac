#include "reading.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace divine::drafting {
namespace {

// A place speaks with the power of its match's length; "none of them" with a constant. In greedy
// answers of small models a lone match of 1 is right one time in six, of 4 two times in three and
// of 16 nineteen times in twenty, which these meet.
constexpr double kPower = 1.5;
constexpr double kNone = 5.0;
constexpr std::int32_t kLast = 128;  // longer matches are worth no more

constexpr double kDoubt = 1.0;  // of a change, beside how often it was made: the text stays

double weight_of(std::int32_t length) {
  static const auto weights = [] {
    std::array<double, kLast + 1> w;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::pow(double(i), kPower);
    return w;
  }();
  return weights[std::size_t(std::min(length, kLast))];
}

}  // namespace

std::int32_t Tree::add(std::int32_t token, std::int32_t parent, double claim) {
  tokens.push_back(token);
  parents.push_back(parent);
  claims.push_back(claim);
  return size() - 1;
}

void Tree::clear() {
  tokens.clear();
  parents.clear();
  claims.clear();
}

const Tree& Reading::read(const Tokens& text, const Places& places, const Follower& follower,
                          const Budget& budget, bool loop) {
  text_ = &text;
  follower_ = &follower;
  budget_ = budget;
  loop_ = loop;
  end_ = std::int32_t(text.size());
  tree_.clear();
  queue_.clear();
  readers_.clear();
  offers_ = 0;
  if (places.empty()) return tree_;
  for (const Place& place : places) readers_.push_back({place.at, place.length, place.at, {}});
  readers_[0].owed = follower.owed();
  branch({0, readers_.size()}, -1, 1, 1.0);
  while (!queue_.empty() && tree_.size() < budget.nodes &&
         queue_.front().path >= budget.row_price) {
    std::pop_heap(queue_.begin(), queue_.end());
    const Offer best = queue_.back();
    queue_.pop_back();
    const std::int32_t node = tree_.add(best.token, best.parent, best.claim);
    if (best.readers.end - best.readers.begin == 1)
      chain(readers_[best.readers.begin], node, best.depth + 1, best.path);
    else
      branch(best.readers, node, best.depth + 1, best.path);
  }
  return tree_;
}

// Offers a child of `parent` for every token that some reader has next.
void Reading::branch(Readers readers, std::int32_t parent, std::int32_t depth, double path) {
  if (depth > budget_.depth) return;
  double total = kNone;
  entries_.clear();
  for (std::size_t i = readers.begin; i < readers.end; ++i) total += next(readers_[i]);
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.token != b.token ? a.token < b.token : a.order < b.order;
  });
  groups_.clear();
  for (const Entry& entry : entries_) {
    const std::size_t at = readers_.size();
    if (groups_.empty() || groups_.back().token != entry.token)
      groups_.push_back({entry.token, entry.order, entry.weight, {at, at + 1}});
    else
      groups_.back().weight += entry.weight, ++groups_.back().readers.end;
    readers_.push_back(entry.after);
  }
  std::sort(groups_.begin(), groups_.end(),
            [](const Group& a, const Group& b) { return a.order < b.order; });
  for (const Group& group : groups_) {
    const double claim = group.weight / total;
    offer(path * claim, group.token, claim, parent, depth, group.readers);
  }
}

// Adds what one reader has next below `node`, until something in the queue is likelier.
void Reading::chain(Reader reader, std::int32_t node, std::int32_t depth, double path) {
  const double rival = std::max(queue_.empty() ? 0.0 : queue_.front().path, budget_.row_price);
  const std::size_t own = readers_.size();
  for (; depth <= budget_.depth; ++depth) {
    std::int32_t& place = reader.place;
    const bool changes = place < end_ && follower_->change((*text_)[std::size_t(place)]) != nullptr;
    if (changes || !reader.owed.empty()) {
      readers_.push_back(reader);
      branch({own, own + 1}, node, depth, path);
      return;
    }
    if (place == end_ && loop_) place = reader.start;
    if (place == end_) return;
    const std::int32_t token = (*text_)[std::size_t(place)];
    const double weight = weight_of(reader.length);
    const double claim = weight / (weight + kNone);
    path *= claim;
    ++place;
    ++reader.length;
    if (path < rival || tree_.size() >= budget_.nodes) {
      readers_.push_back(reader);
      offer(path, token, claim, node, depth, {own, own + 1});
      return;
    }
    node = tree_.add(token, node, claim);
  }
}

double Reading::next(const Reader& reader) {
  const double weight = weight_of(reader.length);
  const std::int32_t length = reader.length + 1;
  std::int32_t place = reader.place;
  if (!reader.owed.empty()) {
    enter(follower_->said(reader.owed), weight, {place, length, reader.start, reader.owed.rest()});
    return weight;
  }
  if (place == end_ && loop_) place = reader.start;
  if (place == end_) return 0.0;  // a replacement may end where the text does
  const std::int32_t token = (*text_)[std::size_t(place)];
  const Copied* change = follower_->change(token);
  if (change == nullptr) {
    enter(token, weight, {place + 1, length, reader.start, {}});
    return weight;
  }
  double times = change->kept + kDoubt;
  for (const Replacement& made : change->made) times += made.count;
  enter(token, weight * ((change->kept + kDoubt) / times), {place + 1, length, reader.start, {}});
  for (const Replacement& made : change->made)
    enter(follower_->said(made.said), weight * (made.count / times),
          {std::min(place + made.skipped, end_), length, reader.start, made.said.rest()});
  return weight;
}

void Reading::enter(std::int32_t token, double weight, const Reader& after) {
  entries_.push_back({token, std::int32_t(entries_.size()), weight, after});
}

void Reading::offer(double path, std::int32_t token, double claim, std::int32_t parent,
                    std::int32_t depth, Readers readers) {
  queue_.push_back({path, ++offers_, token, claim, parent, depth, readers});
  std::push_heap(queue_.begin(), queue_.end());
}

SuffixReader::SuffixReader(Tokens text, std::int32_t start, std::int32_t trust, bool own)
    : own_(own), start_(start), text_(std::move(text)), follower_(trust) {
  index_.extend(text_);
}

const Tree& SuffixReader::propose(const Tokens& grown, const Budget& budget) {
  Tokens& query = own_ ? text_ : query_;
  const std::size_t followed = std::max(query.size(), std::size_t(start_));
  query.insert(query.end(), grown.begin(), grown.end());
  if (own_) index_.extend(text_);
  if (followed < query.size())
    follower_.take(text_, query.data() + followed, query.data() + query.size());
  follower_.join(text_, query, index_.find(text_, query, start_), places_);
  return reading_.read(text_, places_, follower_, budget, own_);
}

}  // namespace divine::drafting
