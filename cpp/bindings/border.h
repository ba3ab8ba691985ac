// What every binding checks about its arguments: formats and arrays from Python.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../kernels/layout.h"

namespace divine {

using Bytes =
    nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Ints =
    nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Floats =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using FloatRows =
    nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

inline Format format_of(const std::string& name) {
  for (int i = 0; i < int(Format::kCount); ++i)
    if (name == kFormats[i].name) return Format(i);
  throw std::invalid_argument("unknown format " + name);
}

inline void check_shape(Format f, int64_t rows, int64_t in) {
  const FormatInfo& fi = info(f);
  if (rows < 1 || in < 1 || rows > (int64_t(1) << 31) - 64 || in > 1 << 24 || in % fi.block != 0)
    throw std::invalid_argument("rows and columns must be positive and columns a multiple of " +
                                std::to_string(fi.block));
}

inline void check_raw(Format f, int64_t rows, int64_t in, size_t bytes) {
  check_shape(f, rows, in);
  const FormatInfo& fi = info(f);
  const size_t want = size_t(rows) * size_t(in / fi.block) * size_t(fi.block_bytes);
  if (bytes != want)
    throw std::invalid_argument("expected " + std::to_string(want) + " bytes, found " +
                                std::to_string(bytes));
}

template <class Array>
inline void check_aligned(const Array& a) {
  if (reinterpret_cast<uintptr_t>(a.data()) % sizeof(*a.data()) != 0)
    throw std::invalid_argument("an array is not aligned to its element size");
}

// A NumPy array lent for the length of a call. The buffer protocol alone costs a fraction of what
// nanobind's arrays do, which ask for DLPack first: it matters where a pass takes milliseconds.
template <class T>
class Lent {
 public:
  Lent(const nanobind::handle& object, int dims) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();
      throw nanobind::type_error("expected a contiguous array");
    }
    constexpr char wanted = std::is_same_v<T, float> ? 'f' : std::is_same_v<T, int32_t> ? 'i' : 'B';
    const bool same = view_.format != nullptr && view_.format[0] == wanted && !view_.format[1];
    if (!same || view_.ndim != dims || reinterpret_cast<uintptr_t>(view_.buf) % sizeof(T) != 0) {
      PyBuffer_Release(&view_);
      throw nanobind::type_error("an array has another type, shape or alignment than expected");
    }
  }
  ~Lent() { PyBuffer_Release(&view_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  const T* data() const { return static_cast<const T*>(view_.buf); }
  size_t shape(int i) const { return size_t(view_.shape[i]); }

 private:
  Py_buffer view_;
};

}  // namespace divine
