// Matrix products inside a pass: one group of 16 outputs times all rows, the next one fetched
// ahead.
#pragma once
#include <algorithm>

#include "kernels/times_rows.h"
#include "pass.h"

namespace divine {

constexpr size_t kAhead = 4096;  // how far one row's reading is fetched ahead, bytes

// One group times `rows` activations. While one tile computes, its share of the next group is
// fetched, so that memory is never idle.
template <class Store>
void Pass::group_times_rows(const Matrix& m, int group, const Activation* a, int rows,
                            const Store& store) const {
  const uint8_t* w = m.data + size_t(group) * m.group_bytes;
  const int all = tiles_of(rows);
  const size_t steps = size_t(std::max(1, m.in / 32));  // times a tile fetches
  const auto fetch = [&](int tiles) -> Prefetch {
    if (all == 1) return {w + std::min(kAhead, m.group_bytes), int(m.group_bytes / steps), false};
    const size_t share = m.group_bytes / size_t(all);
    return {w + m.group_bytes + size_t(tiles) * share, int((share + steps - 1) / steps), true};
  };
  times_rows(k_, m.format, w, m.in / info(m.format).block, a, rows, fetch, store);
}

}  // namespace divine
