#include "shortlist.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/repack.h"
#include "os.h"

namespace divine {

PackedRows::PackedRows(const Matrix& from, std::vector<int> chosen)
    : ids(std::move(chosen)), source(from.data), matrix(from) {
  int last = -1;
  for (const int id : ids) {
    if (id <= last || id >= from.out)
      throw std::invalid_argument("packed rows must ascend within the output matrix");
    last = id;
  }
  matrix.out = int(ids.size());
  matrix.groups = (matrix.out + kLanes - 1) / kLanes;
  // Zeroed, so padding is what repacking makes of missing rows; reading ahead stays inside.
  memory_ = static_cast<uint8_t*>(os::reserve(size_t(matrix.groups) * matrix.group_bytes));
  matrix.data = memory_;
  for (int i = 0; i < matrix.out; ++i)
    copy_row(from.format, from.in, from.data + size_t(ids[size_t(i)] / kLanes) * from.group_bytes,
             ids[size_t(i)] % kLanes, memory_ + size_t(i / kLanes) * matrix.group_bytes,
             i % kLanes);
}

PackedRows::~PackedRows() { os::release(memory_, size_t(matrix.groups) * matrix.group_bytes); }

Shortlist::Shortlist(const int32_t* first, size_t count, int size,
                     std::shared_ptr<const PackedRows> rows)
    : vocabulary(size), ids(first, first + count), packed(std::move(rows)) {
  if (count == 0) throw std::invalid_argument("a shortlist is empty; it needs a token");
  int last = -1;
  size_t at = 0;  // in packed->ids
  for (const int id : ids) {
    if (id <= last || id >= size)
      throw std::invalid_argument("a shortlist has token " + std::to_string(id) + " after " +
                                  std::to_string(last) + "; tokens ascend within 0.." +
                                  std::to_string(size - 1));
    last = id;
    if (packed && at < packed->ids.size() && packed->ids[at] == id) {
      ++at;
      continue;
    }
    if (groups.empty() || groups.back() != id / kLanes) {
      groups.push_back(id / kLanes);
      listed.push_back(0);
    }
    listed.back() = uint16_t(listed.back() | 1u << (id % kLanes));
  }
  if (packed && at != packed->ids.size())
    throw std::invalid_argument("a packed shortlist has a token that is not among the ids");
}

}  // namespace divine
