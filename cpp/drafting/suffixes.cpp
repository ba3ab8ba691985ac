#include "suffixes.h"

#include <algorithm>
#include <random>
#include <utility>

namespace divine::drafting {
namespace {

// The n-grams that are indexed, and how many of the latest places of each are looked at: those of
// three tokens seldom recur more often, and of a single token only what came lately says much. More
// of either, or further orders, accept nothing more in greedy answers and edited code.
constexpr int kTriplePlaces = 16;
constexpr int kSinglePlaces = 8;
// A match as long as this gains nothing from places of shorter ones.
constexpr std::int32_t kLong = 12;
// How far back a place is compared when it is met first. A match that goes on grows without limit.
constexpr std::int32_t kFirstLook = 32;

constexpr std::size_t kFirstSlots = 64;

// Nobody can write a prompt whose grams all meet in one slot.
std::uint64_t secret() {
  static const std::uint64_t value = [] {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }();
  return value;
}

std::uint64_t mixed(std::uint64_t x) {  // the finalizer of MurmurHash3
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
  return x ^ x >> 33;
}

}  // namespace

const Place* find_place(const Places& places, std::int32_t at) {
  for (const Place& place : places)
    if (place.at == at) return &place;
  return nullptr;
}

GramTable::GramTable(int order)
    : order_(std::size_t(order)), earlier_(order_), slots_(kFirstSlots) {}

void GramTable::extend(const Tokens& text) {
  for (std::size_t place = earlier_.size(); place < text.size(); ++place) {
    if (2 * grams_ >= slots_.size()) grow(text);
    std::int32_t& latest = slots_[slot(text, text.data() + place)];
    earlier_.push_back(latest);
    grams_ += latest == 0;
    latest = std::int32_t(place);
  }
}

std::int32_t GramTable::latest(const Tokens& text, const Tokens& query) const {
  return query.size() < order_ ? 0 : slots_[slot(text, query.data() + query.size())];
}

std::size_t GramTable::hash(const std::int32_t* end) const {
  std::uint64_t hash = secret();
  for (const std::int32_t* token = end - order_; token != end; ++token)
    hash = mixed(hash ^ std::uint32_t(*token));
  return hash;
}

std::size_t GramTable::slot(const Tokens& text, const std::int32_t* end) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash(end) & mask;
  while (slots_[i] != 0 && !std::equal(end - order_, end, text.data() + slots_[i] - order_))
    i = (i + 1) & mask;
  return i;
}

void GramTable::grow(const Tokens& text) {
  Tokens wider(2 * slots_.size());
  const std::size_t mask = wider.size() - 1;
  for (const std::int32_t place : slots_) {
    if (place == 0) continue;
    std::size_t i = hash(text.data() + place) & mask;
    while (wider[i] != 0) i = (i + 1) & mask;  // no two are of one gram
    wider[i] = place;
  }
  slots_ = std::move(wider);
}

void SuffixIndex::extend(const Tokens& text) {
  triples_.extend(text);
  singles_.extend(text);
}

const Places& SuffixIndex::find(const Tokens& text, const Tokens& query, std::int32_t floor) {
  std::swap(found_, before_);
  found_.clear();
  std::int32_t longest = 0;
  const auto look = [&](const GramTable& table, int places) {
    for (std::int32_t place = table.latest(text, query); place != 0 && places != 0; --places) {
      if (find_place(found_, place) == nullptr) {
        const std::int32_t length = match(text, query, place, floor);
        if (length > 0) found_.push_back({place, length});
        longest = std::max(longest, length);
      }
      place = table.earlier(place);
    }
  };
  look(triples_, kTriplePlaces);
  if (longest < kLong) look(singles_, kSinglePlaces);
  queried_ = std::int32_t(query.size());
  return found_;
}

std::int32_t SuffixIndex::match(const Tokens& text, const Tokens& query, std::int32_t place,
                                std::int32_t floor) const {
  const auto end = std::int32_t(query.size());
  const std::int32_t grown = end - queried_;
  const Place* before = find_place(before_, place - grown);
  if (before != nullptr && std::equal(query.end() - grown, query.end(), &text[before->at]))
    return before->length + grown;
  const std::int32_t limit = std::min({place, end - floor, kFirstLook});
  std::int32_t length = 0;
  while (length < limit &&
         text[std::size_t(place - 1 - length)] == query[std::size_t(end - 1 - length)])
    ++length;
  return length;
}

}  // namespace divine::drafting
