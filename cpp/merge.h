// Pair merging, the heart of byte-pair encoding: a word starts as single characters, and the
// adjacent pair of lowest rank, leftmost first, is joined until no pair has a rank (Sennrich et al.
// 2016; Kudo and Richardson 2018). A word of n characters takes O(n log n). Knows nothing of how
// text is cut into words, nor of special tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace divine::text {

using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kNone = -1;

// Strings (UTF-8 here) in one piece of memory.
class Strings {
 public:
  void add(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t start = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(start, ends_[i] - start);
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

// Finds strings by their text: a hash table in one piece of memory, which is made quickly.
class Index {
 public:
  // Empty strings are not found; of equal ones the first is.
  explicit Index(Strings strings);

  std::int32_t find(std::string_view text) const;  // kNone if there is none
  const Strings& strings() const { return strings_; }

 private:
  struct Slot {
    std::uint32_t check = 0;  // more bits of the hash
    std::int32_t found = kNone;
  };
  std::size_t slot(std::string_view text, std::uint64_t hash) const;

  Strings strings_;
  std::vector<Slot> slots_;  // their number is a power of two
};

// By this the kinds of byte-pair encoding differ.
struct MergeRules {
  Strings texts;    // of each token; an empty one is not made
  Strings merges;   // "left right", lowest rank first; no piece holds a space
  Ids ranks;        // instead of merges: of each token, whatever two pieces it is made from
  Strings barred;   // texts that no merge makes
  Strings letters;  // a character for each byte of a word, if not its own characters are merged
  Ids bytes;  // of a piece that is no token, the token of each byte or kNone; if empty, characters
  std::int32_t unknown = kNone;  // the token of a piece that cannot be written so
  Ids wholes;                    // tokens that a word is without merging if it equals them
};

class Merger {
 public:
  explicit Merger(MergeRules rules);

  // Appends the tokens of each word; returns the first piece that has none, else nothing.
  std::string encode(const Strings& words, Ids& ids) const;

 private:
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  struct Node {  // one of the pieces that are left of a word; the last is a stop
    std::uint32_t start, before, after;
    std::uint32_t rank;  // with the piece after it
  };
  struct Work {
    std::string_view word;
    std::vector<Node> nodes;
    std::vector<std::uint64_t> heap;  // rank and place of pairs
    std::string spelled, pair;
  };

  void cut(Work& work) const;
  void join(Work& work) const;
  std::uint32_t rank(Work& work, const Node& left) const;
  bool spell(std::string_view piece, Ids& ids) const;

  Index tokens_, merges_;
  Strings letters_;
  Ids ranks_, bytes_;
  std::vector<bool> barred_;  // of each merge
  std::vector<bool> wholes_;  // of each token; empty if there are none
  std::int32_t unknown_;
};

}  // namespace divine::text
