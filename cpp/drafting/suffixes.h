// Where the end of a query has stood before in a text that only grows. A *place* is a position of
// the text whose preceding tokens match the end of the query (the same text, or another), so the
// token at the place is a guess at the query's next one. Knows no trees and no probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace divine::drafting {

using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kMostTokens = std::int32_t{1} << 30;  // of a text: sums of places fit

struct Place {
  std::int32_t at;
  std::int32_t length;  // of the match that ends there
};

using Places = std::vector<Place>;  // a few dozen at most, no place twice

// The entry of `places` at this place, nullptr if there is none.
const Place* find_place(const Places& places, std::int32_t at);

// The n-grams of one order: of each its latest place, and the place before each place.
class GramTable {
 public:
  explicit GramTable(int order);

  // Takes in what the text has gained; a gram that nothing follows yet waits.
  void extend(const Tokens& text);

  // The latest place of the query's last gram, 0 if there is none.
  std::int32_t latest(const Tokens& text, const Tokens& query) const;

  // The place before this one of the same gram, 0 if there is none.
  std::int32_t earlier(std::int32_t place) const { return earlier_[std::size_t(place)]; }

 private:
  std::size_t hash(const std::int32_t* end) const;  // of the gram that ends before `end`
  // Where the place of the gram that ends before `end` is kept, or would be.
  std::size_t slot(const Tokens& text, const std::int32_t* end) const;
  void grow(const Tokens& text);

  std::size_t order_;
  std::size_t grams_ = 0;
  Tokens earlier_;  // by place
  Tokens slots_;    // the latest places of grams, 0 where free; their number is a power of two
};

// Takes some 30 bytes for each token of the text.
class SuffixIndex {
 public:
  void extend(const Tokens& text);

  // Places that follow the end of the query from `floor` on, with matches of at least 1. The
  // longest match is among them unless its last three tokens have recurred many times since. Text
  // and query must be those of the last call, grown or not.
  const Places& find(const Tokens& text, const Tokens& query, std::int32_t floor);

 private:
  std::int32_t match(const Tokens& text, const Tokens& query, std::int32_t place,
                     std::int32_t floor) const;

  GramTable triples_{3}, singles_{1};
  Places found_, before_;     // by this call of find, and by the last one
  std::int32_t queried_ = 0;  // the last query's own length
};

}  // namespace divine::drafting
