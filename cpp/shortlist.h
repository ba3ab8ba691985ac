// A draft vocabulary: the token ids to which the head of a pass is restricted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace divine {

// Immutable, so any number of passes may share it.
struct Shortlist {
  int vocabulary;
  std::vector<int> ids;          // ascending
  std::vector<int> groups;       // those of the output matrix that hold a listed id, ascending
  std::vector<uint16_t> listed;  // per group: bit i says that its output i is listed

  // Throws std::invalid_argument unless the ids ascend within 0 .. vocabulary - 1, at least one.
  Shortlist(const int32_t* first, size_t count, int vocabulary);
};

}  // namespace divine
