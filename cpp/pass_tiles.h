// The inner loop of every matrix product: one group of 16 outputs times all rows, in tiles.
#pragma once
#include <algorithm>

#include "pass.h"

namespace divine {

constexpr size_t kAhead = 4096;  // how far one row's reading is fetched ahead, bytes

// One group times `rows` activations, in tiles as even as they go. While one tile computes, its
// share of the next group is fetched, so that memory is never idle.
template <class Store>
void Pass::group_times_rows(const Matrix& m, int group, const Activation* a, int rows,
                            const Store& store) const {
  const uint8_t* w = m.data + size_t(group) * m.group_bytes;
  const int units = m.in / info(m.format).block;
  const int tiles = tiles_of(rows);
  const size_t steps = size_t(std::max(1, m.in / 32));  // times a tile fetches
  const ManyFn many = rows > kTileRows ? k_.many[int(m.format)] : nullptr;
  const int calls = many == nullptr ? tiles : (rows + kManyRows - 1) / kManyRows;
  float out[kManyRows][16];
  for (int c = 0, first = 0, fetched = 0; c < calls; ++c) {
    const int count = rows / calls + (c < rows % calls);
    Prefetch fetch;
    if (tiles == 1) {
      fetch = {w + std::min(kAhead, m.group_bytes), int(m.group_bytes / steps), false};
    } else {
      const size_t share = m.group_bytes / size_t(tiles);
      fetch = {w + m.group_bytes + size_t(fetched) * share, int((share + steps - 1) / steps), true};
    }
    if (many != nullptr)
      many(w, units, a + first, count, out, fetch);
    else
      k_.tile[int(m.format)][count - 1](w, units, a + first, out, fetch);
    for (int r = 0; r < count; ++r) store(first + r, out[r]);
    first += count;
    fetched += tiles_of(count);
  }
}

}  // namespace divine
