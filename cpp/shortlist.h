// A draft vocabulary: the token ids to which the head of a pass is restricted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "matrix.h"

namespace divine {

// Copies of some rows of an output matrix, side by side: in place, each would cost its whole group.
struct PackedRows {
  std::vector<int> ids;   // ascending; row i of the copy is that of ids[i]
  const uint8_t* source;  // the matrix they were taken from
  Matrix matrix;          // [ids, in]

  PackedRows(const Matrix& from, std::vector<int> ids);
  ~PackedRows();
  PackedRows(const PackedRows&) = delete;

 private:
  uint8_t* memory_;
};

// Immutable, so any number of passes may share it.
struct Shortlist {
  int vocabulary;
  std::vector<int> ids;          // ascending
  std::vector<int> groups;       // those of the output matrix that hold a listed id, ascending
  std::vector<uint16_t> listed;  // per group: bit i says that its output i is listed
  std::shared_ptr<const PackedRows> packed;  // null: none; its ids are in no group

  // Throws std::invalid_argument unless the ids ascend within 0 .. vocabulary - 1, at least one,
  // and those of `packed` are among them.
  Shortlist(const int32_t* first, size_t count, int vocabulary,
            std::shared_ptr<const PackedRows> packed = nullptr);
};

}  // namespace divine
