#include "merge.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <stdexcept>
#include <utility>

namespace divine::text {
namespace {

constexpr std::size_t kLongestWord = std::size_t{1} << 31;  // places are 32 bits wide

// Bytes of the UTF-8 character that begins with this one.
std::size_t width(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Which merges make one of the barred texts.
std::vector<bool> barred_merges(const Strings& merges, Strings barred) {
  const Index known(std::move(barred));
  std::vector<bool> out(merges.size());
  std::string text;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    text = merges[i];
    std::erase(text, ' ');
    out[i] = known.find(text) != kNone;
  }
  return out;
}

}  // namespace

Index::Index(Strings strings) : strings_(std::move(strings)) {
  slots_.resize(std::bit_ceil(strings_.size() * 3 / 2 + 2));
  for (std::size_t i = 0; i < strings_.size(); ++i) {
    if (strings_[i].empty()) continue;
    const std::uint64_t hash = std::hash<std::string_view>()(strings_[i]);
    Slot& slot = slots_[this->slot(strings_[i], hash)];
    if (slot.found == kNone) slot = {std::uint32_t(hash >> 32), std::int32_t(i)};
  }
}

std::int32_t Index::find(std::string_view text) const {
  return slots_[slot(text, std::hash<std::string_view>()(text))].found;
}

// Where the text is, or would be.
std::size_t Index::slot(std::string_view text, std::uint64_t hash) const {
  std::size_t i = hash & (slots_.size() - 1);
  while (slots_[i].found != kNone && (slots_[i].check != std::uint32_t(hash >> 32) ||
                                      strings_[std::size_t(slots_[i].found)] != text))
    i = (i + 1) & (slots_.size() - 1);
  return i;
}

Merger::Merger(MergeRules rules)
    : tokens_(std::move(rules.texts)),
      merges_(std::move(rules.merges)),
      letters_(std::move(rules.letters)),
      ranks_(std::move(rules.ranks)),
      bytes_(std::move(rules.bytes)),
      barred_(barred_merges(merges_.strings(), std::move(rules.barred))),
      wholes_(rules.wholes.empty() ? 0 : tokens_.strings().size()),
      unknown_(rules.unknown) {
  for (const std::int32_t id : rules.wholes) wholes_.at(std::size_t(id)) = true;
}

std::string Merger::encode(const Strings& words, Ids& ids) const {
  Work work;
  for (std::size_t i = 0; i < words.size(); ++i) {
    work.word = words[i];
    if (letters_.size() != 0) {
      work.spelled.clear();
      for (const char byte : words[i]) work.spelled += letters_[static_cast<unsigned char>(byte)];
      work.word = work.spelled;
    }
    if (work.word.size() >= kLongestWord) throw std::length_error("a word is too long");
    const std::int32_t whole = wholes_.empty() ? kNone : tokens_.find(work.word);
    if (whole != kNone && wholes_[std::size_t(whole)]) {
      ids.push_back(whole);
      continue;
    }
    cut(work);
    join(work);
    for (const Node* node = work.nodes.data(); node->start != work.word.size();) {
      const Node* next = &work.nodes[node->after];
      const std::string_view piece = work.word.substr(node->start, next->start - node->start);
      if (const std::int32_t id = tokens_.find(piece); id != kNone) {
        ids.push_back(id);
      } else if (!spell(piece, ids)) {
        return std::string(piece);
      }
      node = next;
    }
  }
  return {};
}

void Merger::cut(Work& work) const {
  work.nodes.clear();
  std::uint32_t index = 0;
  for (std::size_t at = 0; at < work.word.size(); at += width(work.word[at]), ++index)
    work.nodes.push_back({std::uint32_t(at), index - 1, index + 1, kNever});
  work.nodes.push_back({std::uint32_t(work.word.size()), index - 1, index, kNever});
}

void Merger::join(Work& work) const {
  std::vector<Node>& nodes = work.nodes;
  std::vector<std::uint64_t>& heap = work.heap;
  const auto later = std::greater<std::uint64_t>();
  const auto push = [&](std::uint32_t left) {
    nodes[left].rank = rank(work, nodes[left]);
    if (nodes[left].rank == kNever) return false;
    heap.push_back(std::uint64_t{nodes[left].rank} << 32 | left);
    return true;
  };
  const auto update = [&](std::uint32_t left) {
    if (push(left)) std::push_heap(heap.begin(), heap.end(), later);
  };
  heap.clear();
  for (std::uint32_t left = 0; left < nodes.size(); ++left) push(left);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const std::uint64_t next = heap.back();
    heap.pop_back();
    const auto left = std::uint32_t(next);
    if (nodes[left].rank != next >> 32) continue;  // one of the two was joined elsewhere
    Node& right = nodes[nodes[left].after];
    right.rank = kNever;
    nodes[left].after = right.after;
    nodes[right.after].before = left;
    update(left);
    if (left != 0) update(nodes[left].before);
  }
}

std::uint32_t Merger::rank(Work& work, const Node& left) const {
  const Node& right = work.nodes[left.after];
  const std::size_t end = work.nodes[right.after].start;
  if (right.start == end) return kNever;  // the stop
  if (!ranks_.empty()) {
    const std::int32_t id = tokens_.find(work.word.substr(left.start, end - left.start));
    return id == kNone ? kNever : std::uint32_t(ranks_[std::size_t(id)]);
  }
  work.pair = work.word.substr(left.start, right.start - left.start);
  work.pair += ' ';
  work.pair += work.word.substr(right.start, end - right.start);
  const std::int32_t merge = merges_.find(work.pair);
  return merge == kNone || barred_[std::size_t(merge)] ? kNever : std::uint32_t(merge);
}

bool Merger::spell(std::string_view piece, Ids& ids) const {
  const std::size_t before = ids.size();
  for (std::size_t at = 0, size; at < piece.size(); at += size) {
    size = bytes_.empty() ? width(piece[at]) : 1;
    const std::int32_t id = bytes_.empty() ? tokens_.find(piece.substr(at, size))
                                           : bytes_[static_cast<unsigned char>(piece[at])];
    if (id == kNone) {
      ids.resize(before);
      if (unknown_ != kNone) ids.push_back(unknown_);
      return unknown_ != kNone;
    }
    ids.push_back(id);
  }
  return true;
}

}  // namespace divine::text
