// Trees that read on in a text from places where the end of a query has stood before, the likeliest
// paths first. Of probabilities it knows only what a match of some length has turned out to be
// worth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "follower.h"
#include "suffixes.h"

namespace divine::drafting {

constexpr std::int32_t kMostNodes = 4096, kMostDepth = 4096;
constexpr std::int32_t kMostTrust = 4096;

struct Budget {
  std::int32_t nodes;
  std::int32_t depth;
  double row_price;  // the least probability of a path that is worth its row
};

// One entry of each for every node, parents before children; parent -1 is the query's end. A claim
// is the estimate that a node is right, given that its parent is.
struct Tree {
  Tokens tokens, parents;
  std::vector<double> claims;

  std::int32_t size() const { return std::int32_t(tokens.size()); }
  std::int32_t add(std::int32_t token, std::int32_t parent, double claim);
  void clear();
};

// Makes one tree after another; what it needs for that it keeps.
class Reading {
 public:
  // The tree of what follows `places`. Where they disagree there are siblings, each with the weight
  // of the places that say so; along a path the matches grow. Of equals the earlier in `places`
  // comes first. With `loop` a place that reaches the end of the text goes on where it began, as
  // the text itself would if it went on so. Tokens that the follower has seen changed may be
  // replaced, and what it owes is said before the first of the places.
  const Tree& read(const Tokens& text, const Places& places, const Follower& follower,
                   const Budget& budget, bool loop);

 private:
  struct Reader {  // of the text, along one path
    std::int32_t place;
    std::int32_t length;  // of the match that ends there
    std::int32_t start;   // the place where it began to read
    Owed owed;            // what comes before the place
  };
  struct Readers {  // a part of readers_
    std::size_t begin, end;
  };
  struct Entry {  // what one reader has next
    std::int32_t token;
    std::int32_t order;
    double weight;
    Reader after;
  };
  struct Group {  // the entries of one token
    std::int32_t token;
    std::int32_t order;  // of the first of them
    double weight;
    Readers readers;
  };
  struct Offer {  // a node that may be next
    double path;
    std::int64_t order;
    std::int32_t token;
    double claim;
    std::int32_t parent, depth;
    Readers readers;

    bool operator<(const Offer& other) const {  // of two, the likelier or else the earlier is next
      return path != other.path ? path < other.path : order > other.order;
    }
  };

  void branch(Readers readers, std::int32_t parent, std::int32_t depth, double path);
  void chain(Reader reader, std::int32_t node, std::int32_t depth, double path);
  double next(const Reader& reader);  // collects its entries; their weight, 0 if there are none
  void enter(std::int32_t token, double weight, const Reader& after);
  void offer(double path, std::int32_t token, double claim, std::int32_t parent, std::int32_t depth,
             Readers readers);

  const Tokens* text_ = nullptr;
  const Follower* follower_ = nullptr;
  Budget budget_{};
  bool loop_ = false;
  std::int32_t end_ = 0;  // of the text

  Tree tree_;
  std::vector<Offer> queue_;  // a heap
  std::int64_t offers_ = 0;
  std::vector<Reader> readers_;
  std::vector<Entry> entries_;
  std::vector<Group> groups_;
};

// All that a drafter needs which reads on where a sequence's end has stood before.
class SuffixReader {
 public:
  // Reads in the sequence itself.
  SuffixReader() : SuffixReader({}, 0, 0, true) {}

  // Reads in another text, which the sequence is expected to follow from its token `start` on: its
  // beginning is worth a match of `trust`.
  SuffixReader(Tokens text, std::int32_t start, std::int32_t trust)
      : SuffixReader(std::move(text), start, trust, false) {}

  // Tokens of the sequence so far.
  std::size_t taken() const { return query().size(); }

  // The sequence has grown by these tokens: how it may go on. Valid until the next call.
  const Tree& propose(const Tokens& grown, const Budget& budget);

 private:
  SuffixReader(Tokens text, std::int32_t start, std::int32_t trust, bool own);

  const Tokens& query() const { return own_ ? text_ : query_; }

  bool own_;  // text and sequence are the same
  std::int32_t start_;
  Tokens text_, query_;
  SuffixIndex index_;
  Follower follower_;
  Places places_;
  Reading reading_;
};

}  // namespace divine::drafting
