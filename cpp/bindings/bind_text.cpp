// Python's view of pair merging: checks at the border.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "../merge.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using divine::text::Ids;
using divine::text::kNone;
using divine::text::Merger;
using divine::text::Strings;

// Asking Python's strings themselves for UTF-8 would leave it in them.
Strings strings(const nb::list& texts) {
  Strings out;
  for (const nb::handle text : texts) {
    if (PyUnicode_Check(text.ptr()) && PyUnicode_IS_ASCII(text.ptr())) {
      out.add({static_cast<const char*>(PyUnicode_DATA(text.ptr())),
               std::size_t(PyUnicode_GET_LENGTH(text.ptr()))});
    } else {
      const nb::object bytes = nb::steal(PyUnicode_AsUTF8String(text.ptr()));
      if (!bytes.is_valid()) throw nb::python_error();
      out.add({PyBytes_AS_STRING(bytes.ptr()), std::size_t(PyBytes_GET_SIZE(bytes.ptr()))});
    }
  }
  return out;
}

// Strings as a GGUF file holds them: each after its length in 8 bytes.
Strings packed(const nb::bytes& texts) {
  Strings out;
  std::string_view rest(texts.c_str(), texts.size());
  while (!rest.empty()) {
    std::uint64_t size = 0;
    if (rest.size() < sizeof size) throw std::invalid_argument("packed strings end in a length");
    std::memcpy(&size, rest.data(), sizeof size);
    rest.remove_prefix(sizeof size);
    if (size > rest.size()) throw std::invalid_argument("packed strings end in a string");
    out.add(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return out;
}

void make(Merger* self, const nb::list& texts, const nb::bytes& merges, Ids ranks,
          const nb::list& barred, const nb::list& letters, Ids bytes, std::int32_t unknown,
          Ids wholes) {
  const std::size_t tokens = nb::len(texts);
  if (tokens > std::size_t{1} << 24) throw std::invalid_argument("too many tokens");
  for (const std::size_t count : {nb::len(letters), bytes.size()})
    if (count != 0 && count != 256)
      throw std::invalid_argument("each of the 256 bytes needs an entry");
  const auto check = [&](std::int32_t id) {
    if (id < 0 || std::size_t(id) >= tokens) throw std::invalid_argument("an id is no token");
  };
  for (const std::int32_t id : wholes) check(id);
  for (const std::int32_t id : bytes)
    if (id != kNone) check(id);
  if (unknown != kNone) check(unknown);
  if (!ranks.empty() && ranks.size() != tokens)
    throw std::invalid_argument("each token needs a rank");
  for (const std::int32_t rank : ranks)
    if (rank < 0) throw std::invalid_argument("a rank is negative");
  new (self) Merger({strings(texts), packed(merges), std::move(ranks), strings(barred),
                     strings(letters), std::move(bytes), unknown, std::move(wholes)});
}

nb::tuple encode(const Merger& merger, const nb::list& words) {
  const Strings own = strings(words);
  Ids ids;
  std::string missing;
  {
    const nb::gil_scoped_release release;
    missing = merger.encode(own, ids);
  }
  return nb::make_tuple(ids, nb::bytes(missing.data(), missing.size()));
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<Merger>(m, "Merger", "Byte-pair merging of words; see cpp/merge.h for the arguments.")
      .def("__init__", &make, "texts"_a, nb::kw_only(), "merges"_a, "ranks"_a, "barred"_a,
           "letters"_a, "bytes"_a, "unknown"_a, "wholes"_a)
      .def(
          "encode", &encode, "words"_a,
          "Tokens of consecutive words, and the UTF-8 of the first piece that has none, else b''.");
}
