// Python's view of reading on in texts: checks at the border.
#include <nanobind/nanobind.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../drafting/reading.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace divine::drafting;

namespace {

std::int32_t token_of(const nb::handle& item) {
  const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || value < 0 || value > INT32_MAX)
    throw std::invalid_argument("a token is outside 0 to 2^31 - 1");
  return std::int32_t(value);
}

// The tokens of a sequence from `begin` on. Asking for one may run code that changes a list.
Tokens tokens_from(const nb::handle& sequence, std::size_t begin) {
  const nb::object items = nb::steal(PySequence_Fast(sequence.ptr(), "expected tokens"));
  if (!items.is_valid()) throw nb::python_error();
  const auto size = [&] { return std::size_t(PySequence_Fast_GET_SIZE(items.ptr())); };
  if (size() < begin) throw std::invalid_argument("there are fewer tokens than before");
  if (size() > std::size_t(kMostTokens)) throw std::invalid_argument("too many tokens");
  Tokens tokens;
  tokens.reserve(size() - begin);
  for (std::size_t i = begin; i < size(); ++i)
    tokens.push_back(token_of(nb::borrow(PySequence_Fast_GET_ITEM(items.ptr(), Py_ssize_t(i)))));
  return tokens;
}

void make(SuffixReader* self, const nb::object& text, std::int32_t start, std::int32_t trust) {
  if (text.is_none()) {
    if (start != 0 || trust != 0)
      throw std::invalid_argument("start and trust belong to a text of its own");
    new (self) SuffixReader();
    return;
  }
  if (start < 0 || start > kMostTokens) throw std::invalid_argument("start is out of range");
  if (trust < 0 || trust > kMostTrust) throw std::invalid_argument("trust is out of range");
  new (self) SuffixReader(tokens_from(text, 0), start, trust);
}

nb::object list_of(const std::vector<std::int32_t>& values) {
  const nb::object list = nb::steal(PyList_New(Py_ssize_t(values.size())));
  if (!list.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyObject* item = PyLong_FromLong(values[i]);
    if (item == nullptr) throw nb::python_error();
    PyList_SET_ITEM(list.ptr(), Py_ssize_t(i), item);
  }
  return list;
}

nb::object list_of(const std::vector<double>& values) {
  const nb::object list = nb::steal(PyList_New(Py_ssize_t(values.size())));
  if (!list.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyObject* item = PyFloat_FromDouble(values[i]);
    if (item == nullptr) throw nb::python_error();
    PyList_SET_ITEM(list.ptr(), Py_ssize_t(i), item);
  }
  return list;
}

nb::tuple propose(SuffixReader& reader, const nb::object& sequence, std::int32_t nodes,
                  std::int32_t depth, double row_price) {
  if (nodes < 0 || nodes > kMostNodes || depth < 0 || depth > kMostDepth)
    throw std::invalid_argument("nodes and depth must be 0 to " + std::to_string(kMostNodes));
  if (!std::isfinite(row_price)) throw std::invalid_argument("row_price must be finite");
  const std::size_t taken = reader.taken();
  const Tokens grown = tokens_from(sequence, taken);
  if (reader.taken() != taken) throw std::invalid_argument("proposing while it proposes");
  const Tree& tree = reader.propose(grown, {nodes, depth, row_price});
  return nb::make_tuple(list_of(tree.tokens), list_of(tree.parents), list_of(tree.claims));
}

}  // namespace

void bind_drafting(nb::module_& m) {
  nb::class_<SuffixReader>(
      m, "SuffixReader",
      "Guesses how a sequence goes on where its end has stood before; see cpp/drafting/reading.h.")
      .def("__init__", &make, "text"_a.none(), "start"_a = 0, "trust"_a = 0,
           "Reads in `text`, from its beginning at the sequence's token `start`; or, if it is "
           "None, in the sequence itself.")
      .def("propose", &propose, "sequence"_a, "nodes"_a, "depth"_a, "row_price"_a,
           "Tokens, parents and claims of a tree below the last token of the sequence, which must "
           "be that of the last call, grown or not.");
}
