// The inner loop of every matrix product: one group of 16 outputs times all rows, in tiles.
#pragma once
#include <algorithm>

#include "pass.h"

namespace divine {

constexpr size_t kAhead = 8192;  // how far one row's reading is fetched ahead, bytes

// One group times `rows` activations in tiles of at most four rows, as even as they go. While one
// tile computes, its share of the next group is fetched, so that memory is never idle.
template <class Store>
void Pass::group_times_rows(const Matrix& m, int group, const Activation* a, int rows,
                            const Store& store) const {
  const uint8_t* w = m.data + size_t(group) * m.group_bytes;
  const int units = m.in / info(m.format).block;
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const int steps = std::max(1, m.in / 32);                         // times a tile fetches
  const int lines = int((m.group_bytes / 64 + steps - 1) / steps);  // per step, all in one tile
  float out[kTileRows][16];
  int first = 0;
  for (int t = 0; t < tiles; ++t) {
    const int count = rows / tiles + (t < rows % tiles);
    Prefetch fetch{nullptr, 0};
    if (tiles == 1) {
      fetch = {w + std::min(kAhead, m.group_bytes), lines};
    } else {
      const int shares = std::min(tiles, lines);  // a share is lines / shares per step of one tile
      const int share = t * shares / tiles;
      if (t == 0 || share != (t - 1) * shares / tiles)
        fetch = {w + m.group_bytes + m.group_bytes * size_t(share) / size_t(shares),
                 (lines + shares - 1) / shares};
    }
    k_.tile[int(m.format)][count - 1](w, units, a + first, out, fetch);
    for (int r = 0; r < count; ++r) store(first + r, out[r]);
    first += count;
  }
}

}  // namespace divine
