// Choosing a CPU level: the best one that the machine has and that proves itself against scalar.
#pragma once
#include <string>
#include <vector>

#include "table.h"

namespace divine {

// All levels of this build, plainest first.
const std::vector<const KernelTable*>& all_levels();
// Names of those the machine supports, plainest first.
std::vector<std::string> supported_levels();
// The level of that name; "" means the best that passes check_level. Throws std::invalid_argument
// for a name that is unknown or not supported here.
const KernelTable& choose_level(const std::string& name, std::string* warning);
// Compares every kernel of a level with scalar on small random data: empty, or what differs.
std::string check_level(const KernelTable& level);

// Weights of one random matrix in the file's block format, [rows, in] (finite, all codes).
std::vector<uint8_t> random_blocks(Format format, int rows, int in, unsigned seed);

}  // namespace divine
