// What this machine can do: read bandwidth, and the in-cache rate of the matrix kernels. Both are
// the yardsticks that `divine bench` divides by.
#pragma once
#include <cstddef>

#include "kernels/table.h"

namespace divine {

// Bytes per second at which `threads` threads read `bytes` of memory once, as long plain
// streams in huge pages; the best of `repeats` readings.
double read_bandwidth(const KernelTable& level, size_t bytes, int threads, int repeats);

// Multiply-adds per second of the matrix kernel on weights and rows that stay in the cache, with
// tiles of `rows` rows, for about `seconds`.
double in_cache_rate(const KernelTable& level, Format format, int threads, int rows,
                     double seconds);

}  // namespace divine
