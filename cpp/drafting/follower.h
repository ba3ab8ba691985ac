// Follower: keeps its place in a text that a query copies with changes. It knows the place while
// the two agree, where it may be when they part, and which tokens the copy replaces again and
// again: a name, a keyword, a spelling. Finds no places anywhere else and makes no trees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "suffixes.h"

namespace divine::drafting {

// Tokens that a replacement still has to say: a part of those that Follower::said() gives.
struct Owed {
  std::int32_t begin = 0, end = 0;

  bool empty() const { return begin == end; }
  Owed rest() const { return {begin + 1, end}; }
};

// What a copy has had, so many times, instead of some tokens of its text.
struct Replacement {
  std::int32_t skipped;  // tokens of the text
  Owed said;             // those instead, at least one
  std::int32_t count;
};

// What became of a token of the text where the copy agreed until there.
struct Copied {
  std::int32_t kept = 0;
  std::vector<Replacement> made;  // in the order in which they were made first
};

// When text and query part, the query's next tokens may stand for as many of the text or for none,
// or some of the text's were left out: places near the parting are then worth more than their
// matches alone, until one there or elsewhere is long enough to follow.
class Follower {
 public:
  // Begins at the start of the text, worth a match of `trust`; with 0 it begins nowhere.
  explicit Follower(std::int32_t trust) : length_(trust) {}

  // The query has grown by these tokens; the text already has them if the two are the same.
  void take(const Tokens& text, const std::int32_t* first, const std::int32_t* last);

  // Sets `places` to those to be expected, with what they are worth as a match's length, then those
  // found; and follows the best of them, if it is good enough.
  void join(const Tokens& text, const Tokens& query, const Places& found, Places& places);

  // How the copy has changed this token, nullptr if it never has.
  const Copied* change(std::int32_t token) const;

  // Of a replacement that has begun: what comes before the first place that join() gives.
  Owed owed() const { return owed_; }

  std::int32_t said(const Owed& owed) const { return said_[std::size_t(owed.begin)]; }

 private:
  bool agrees(const Tokens& text, std::int32_t token);
  void around(const Tokens& text, std::int32_t last, const Places& found, Places& places) const;
  void learn(const Tokens& text, const Tokens& query, std::int32_t place);

  std::int32_t place_ = 0;   // where the query's next token is expected, or where the query parted
  std::int32_t length_;      // of the match that led there; 0: nothing is followed
  std::int32_t astray_ = 0;  // tokens of the query since the parting
  Owed owed_;
  Tokens said_;  // by all replacements
  std::unordered_map<std::int32_t, Copied> copied_;
  std::size_t changed_ = 0;  // tokens with replacements
};

}  // namespace divine::drafting
