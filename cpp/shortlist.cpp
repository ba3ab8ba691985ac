#include "shortlist.h"

#include <stdexcept>
#include <string>

#include "kernels/layout.h"

namespace divine {

Shortlist::Shortlist(const int32_t* first, size_t count, int size)
    : vocabulary(size), ids(first, first + count) {
  if (count == 0) throw std::invalid_argument("a shortlist is empty; it needs a token");
  int last = -1;
  for (const int id : ids) {
    if (id <= last || id >= size)
      throw std::invalid_argument("a shortlist has token " + std::to_string(id) + " after " +
                                  std::to_string(last) + "; tokens ascend within 0.." +
                                  std::to_string(size - 1));
    last = id;
    if (groups.empty() || groups.back() != id / kLanes) {
      groups.push_back(id / kLanes);
      listed.push_back(0);
    }
    listed.back() = uint16_t(listed.back() | 1u << (id % kLanes));
  }
}

}  // namespace divine
