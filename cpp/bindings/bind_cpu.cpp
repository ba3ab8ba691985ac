// Levels, formats and measurements, seen from Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>

#include "../kernels/dispatch.h"
#include "../kernels/repack.h"
#include "../measure.h"
#include "../os.h"
#include "../threads.h"
#include "border.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace divine;

namespace {

nb::list formats() {
  nb::list out;
  for (const FormatInfo& f : kFormats) out.append(f.name);
  return out;
}

double checked_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads must be 1 to 256");
  return threads;
}

nb::object dequantize_repacked(const std::string& format, int rows, int in, const Bytes& raw) {
  const Format f = format_of(format);
  check_raw(f, rows, in, raw.size());
  const FormatInfo& fi = info(f);
  const size_t row_bytes = size_t(in / fi.block) * fi.block_bytes;
  auto* values = new float[size_t(rows) * in];
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  std::vector<uint8_t> group(size_t(in / fi.block) * unit_bytes(f));
  for (int begin = 0; begin < rows; begin += kLanes) {
    const uint8_t* sources[kLanes];
    for (int i = 0; i < kLanes; ++i)
      sources[i] = begin + i < rows ? raw.data() + size_t(begin + i) * row_bytes : nullptr;
    repack_group(f, sources, in, group.data());
    for (int i = 0; i < kLanes && begin + i < rows; ++i)
      dequantize_row(f, group.data(), i, in, values + size_t(begin + i) * in);
  }
  return nb::ndarray<nb::numpy, float, nb::ndim<2>>(values, {size_t(rows), size_t(in)}, owner)
      .cast();
}

nb::object random_weights(const std::string& format, int rows, int in, unsigned seed) {
  const Format f = format_of(format);
  if (rows < 1 || in < 1 || in % info(f).block != 0) throw std::invalid_argument("bad shape");
  auto* data = new std::vector<uint8_t>(random_blocks(f, rows, in, seed));
  nb::capsule owner(data, [](void* p) noexcept { delete static_cast<std::vector<uint8_t>*>(p); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data->data(), {data->size()}, owner).cast();
}

}  // namespace

void bind_cpu(nb::module_& m) {
  m.def("formats", &formats, nb::sig("def formats() -> list[str]"),
        "Block formats the kernels know, by GGML name.");
  m.def("levels", &supported_levels, "CPU levels this machine has, plainest first.");
  m.def(
      "best_level",
      [] {
        std::string warning;
        std::string name = choose_level("", &warning).name;
        return std::pair(name, warning);
      },
      "The level that would be used, and a warning or ''.");
  m.def(
      "check_level",
      [](const std::string& name) { return check_level(choose_level(name, nullptr)); }, "name"_a,
      "Compares a level with scalar on small data: '' or what differs.");
  m.def("processors", &os::processors, "Logical processors this process may use.");
  m.def(
      "read_bandwidth",
      [](size_t bytes, int threads, int repeats) {
        checked_threads(threads);
        if (bytes > size_t(1) << 36 || repeats < 1 || repeats > 1000)
          throw std::invalid_argument("bytes must be at most 2^36 and repeats 1 to 1000");
        const KernelTable& level = choose_level("", nullptr);
        const nb::gil_scoped_release release;
        return read_bandwidth(level, bytes, threads, repeats) / 1e9;
      },
      "bytes"_a, "threads"_a, "repeats"_a = 3, "Memory read bandwidth, GB/s (10^9).");
  m.def(
      "in_cache_rate",
      [](const std::string& format, int threads, int rows, double seconds,
         const std::string& level) {
        checked_threads(threads);
        if (rows < 1 || rows > kManyRows || !(seconds > 0.0) || seconds > 60.0)
          throw std::invalid_argument("rows must be 1 to 20 and seconds at most 60");
        const Format f = format_of(format);
        const KernelTable& table = choose_level(level, nullptr);
        const nb::gil_scoped_release release;
        return in_cache_rate(table, f, threads, rows, seconds) / 1e9;
      },
      "format"_a, "threads"_a, "rows"_a = 4, "seconds"_a = 0.2, "level"_a = "",
      "Multiply-adds per second of one matrix kernel on cached data, 10^9.");
  m.def("dequantize_repacked", &dequantize_repacked, "format"_a, "rows"_a, "columns"_a,
        "raw"_a.noconvert(), "Repacks blocks and decodes them again (a test of the layout).");
  m.def("random_weights", &random_weights, "format"_a, "rows"_a, "columns"_a, "seed"_a,
        "Valid random blocks of a matrix, as bytes of a file.");
}
