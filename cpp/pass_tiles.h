// The inner loop of every matrix product: one group of 16 outputs times all rows, in tiles.
#pragma once
#include <algorithm>

#include "pass.h"

namespace divine {

constexpr size_t kAhead = 4096;  // how far one row's reading is fetched ahead, bytes

// Rows of a tile where there are several: a sixth fits the registers but takes longer than its
// share, which still beats a second tile.
constexpr int kSeveralTiles = 5;

// One group times `rows` activations in tiles as even as they go. While one tile computes, its
// share of the next group is fetched, so that memory is never idle.
template <class Store>
void Pass::group_times_rows(const Matrix& m, int group, const Activation* a, int rows,
                            const Store& store) const {
  const uint8_t* w = m.data + size_t(group) * m.group_bytes;
  const int units = m.in / info(m.format).block;
  const int tiles = rows <= kTileRows ? 1 : (rows + kSeveralTiles - 1) / kSeveralTiles;
  const size_t steps = size_t(std::max(1, m.in / 32));  // times a tile fetches
  float out[kTileRows][16];
  int first = 0;
  for (int t = 0; t < tiles; ++t) {
    const int count = rows / tiles + (t < rows % tiles);
    Prefetch fetch;
    if (tiles == 1) {
      fetch = {w + std::min(kAhead, m.group_bytes), int(m.group_bytes / steps), false};
    } else {
      const size_t share = m.group_bytes / size_t(tiles);
      fetch = {w + m.group_bytes + size_t(t) * share, int((share + steps - 1) / steps), true};
    }
    k_.tile[int(m.format)][count - 1](w, units, a + first, out, fetch);
    for (int r = 0; r < count; ++r) store(first + r, out[r]);
    first += count;
  }
}

}  // namespace divine
