// The inner loop of every matrix product: one group of 16 outputs times all rows, in tiles as even
// as they go, with opened weights where there are many. Passes and measurements share it.
#pragma once
#include "table.h"

namespace divine {

// `fetch(tiles)` says what is fetched ahead during a call that begins after so many tiles;
// `store(r, out)` takes the 16 outputs of row r.
template <class Fetch, class Store>
void times_rows(const KernelTable& level, Format format, const uint8_t* group, int units,
                const Activation* a, int rows, const Fetch& fetch, const Store& store) {
  const ManyFn many = rows > kTileRows ? level.many[int(format)] : nullptr;
  const int calls = many == nullptr ? tiles_of(rows) : (rows + kManyRows - 1) / kManyRows;
  float out[kManyRows][16];
  for (int c = 0, first = 0, tiles = 0; c < calls; ++c) {
    const int count = rows / calls + (c < rows % calls);
    if (many != nullptr)
      many(group, units, a + first, count, out, fetch(tiles));
    else
      level.tile[int(format)][count - 1](group, units, a + first, out, fetch(tiles));
    for (int r = 0; r < count; ++r) store(first + r, out[r]);
    first += count;
    tiles += tiles_of(count);
  }
}

}  // namespace divine
