#include "follower.h"

#include <algorithm>

namespace divine::drafting {
namespace {

// A match of kTrusted tokens is followed. Where the query parts from it, a place among the next
// kWindow tokens that fits the query's last token counts as a match kNear tokens longer, and those
// to go on from if the tokens were inserted, or replace as many, count as a match of kChanged.
// After kPatience tokens it gives up.
constexpr std::int32_t kTrusted = 8;
constexpr std::int32_t kWindow = 24;
constexpr std::int32_t kNear = 4;
constexpr std::int32_t kChanged = 1;
constexpr std::int32_t kPatience = 24;

// Changes of at most so many tokens of the text, into at most so many, are remembered; longer ones
// seldom come twice.
constexpr std::int32_t kMostSkipped = 4;
constexpr std::int32_t kMostSaid = 8;

}  // namespace

void Follower::take(const Tokens& text, const std::int32_t* first, const std::int32_t* last) {
  if (length_ == 0) return;
  for (const std::int32_t* token = first; token != last; ++token) {
    if (astray_ > 0) {
      ++astray_;
    } else if (!agrees(text, *token)) {
      astray_ = 1;
      owed_ = {};
    }
  }
  if (astray_ > kPatience) length_ = 0;
}

void Follower::join(const Tokens& text, const Tokens& query, const Places& found, Places& places) {
  places.clear();
  if (length_ > 0 && astray_ > 0)
    around(text, query.back(), found, places);
  else if (length_ > 0 && (!owed_.empty() || place_ < std::int32_t(text.size())))
    places.push_back({place_, length_});
  const auto expected = std::ptrdiff_t(places.size());
  for (const Place& place : found) {
    const auto end = places.begin() + expected;
    const auto same =
        std::find_if(places.begin(), end, [&](const Place& p) { return p.at == place.at; });
    if (same == end)
      places.push_back(place);
    else
      same->length = std::max(same->length, place.length);
  }
  if (places.empty()) return;
  const auto shorter = [](const Place& a, const Place& b) { return a.length < b.length; };
  const Place best = *std::max_element(places.begin(), places.end(), shorter);  // the first of such
  if (best.length < kTrusted || best.length <= (astray_ > 0 ? 0 : length_)) return;
  if (astray_ > 0 && length_ > 0) learn(text, query, best.at);
  place_ = best.at;
  length_ = best.length;
  astray_ = 0;
  owed_ = {};
}

const Copied* Follower::change(std::int32_t token) const {
  if (changed_ == 0) return nullptr;
  const auto copied = copied_.find(token);
  return copied == copied_.end() || copied->second.made.empty() ? nullptr : &copied->second;
}

// Whether the query goes on as expected; if so, so does the place.
bool Follower::agrees(const Tokens& text, std::int32_t token) {
  const auto end = std::int32_t(text.size());
  if (!owed_.empty()) {
    if (said(owed_) != token) return false;
    owed_ = owed_.rest();
  } else if (place_ == end) {
    return false;
  } else if (const std::int32_t expected = text[std::size_t(place_)]; token == expected) {
    ++place_;
    ++copied_[token].kept;
  } else {
    const auto copied = copied_.find(expected);
    if (copied == copied_.end()) return false;
    std::vector<Replacement>& made = copied->second.made;
    const auto known = std::find_if(made.begin(), made.end(),
                                    [&](const Replacement& r) { return said(r.said) == token; });
    if (known == made.end()) return false;
    ++known->count;
    place_ = std::min(place_ + known->skipped, end);
    owed_ = known->said.rest();
  }
  ++length_;
  return true;
}

void Follower::around(const Tokens& text, std::int32_t last, const Places& found,
                      Places& places) const {
  const auto end = std::int32_t(text.size());
  const std::int32_t expected = place_ + astray_;
  const std::int32_t stop = std::min(expected + kWindow, end);
  for (std::int32_t place = place_ + 1; place < stop; ++place) {
    if (text[std::size_t(place - 1)] != last) continue;
    const Place* match = find_place(found, place);
    places.push_back({place, (match == nullptr ? 1 : match->length) + kNear});
  }
  for (const std::int32_t place : {expected, place_})
    if (place < end && find_place(places, place) == nullptr) places.push_back({place, kChanged});
}

// The query has come back to the text at `place`: remembers what stood between.
void Follower::learn(const Tokens& text, const Tokens& query, std::int32_t place) {
  const auto end = std::int32_t(query.size());
  const std::int32_t most = std::min(astray_, place - place_);
  std::int32_t agree = 0;
  while (agree < most &&
         text[std::size_t(place - 1 - agree)] == query[std::size_t(end - 1 - agree)])
    ++agree;
  const std::int32_t skipped = place - agree - place_;
  const std::int32_t count = astray_ - agree;
  if (skipped <= 0 || skipped > kMostSkipped || count <= 0 || count > kMostSaid) return;
  const auto first = query.end() - astray_;
  std::vector<Replacement>& made = copied_[text[std::size_t(place_)]].made;
  const auto known = std::find_if(made.begin(), made.end(), [&](const Replacement& r) {
    return r.skipped == skipped && std::equal(said_.begin() + r.said.begin,
                                              said_.begin() + r.said.end, first, first + count);
  });
  if (known != made.end()) {
    ++known->count;
    return;
  }
  const auto begin = std::int32_t(said_.size());
  said_.insert(said_.end(), first, first + count);
  made.push_back({skipped, {begin, begin + count}, 1});
  changed_ += made.size() == 1;
}

}  // namespace divine::drafting
