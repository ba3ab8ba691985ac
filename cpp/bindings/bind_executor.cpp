// The executor and its states, seen from Python: arguments checked, arrays passed on, no
// arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <stdexcept>

#include "../executor.h"
#include "../kernels/dispatch.h"
#include "border.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace divine;

namespace {

using Norm = std::optional<std::pair<int, float>>;  // vector number or -1, eps

NormSpec norm_spec(const Norm& n) {
  if (!n) return {};
  if (!(n->second >= 0.0f)) throw std::invalid_argument("a norm's eps must not be negative");
  return {n->first, n->second};
}

// A new NumPy array, or what the caller keeps for those that would be empty, which most are.
template <class T>
nb::object make_array(T** data, std::initializer_list<size_t> shape, const nb::object& nothing) {
  // Found once and kept for good: looking them up costs more than the array.
  static const nb::object* const empty =
      new nb::object(nb::module_::import_("numpy").attr("empty"));
  static const nb::object* const dtype = new nb::object(
      nb::module_::import_("numpy").attr("dtype")(std::is_same_v<T, float> ? "float32" : "int32"));
  size_t n = 1;
  for (const size_t s : shape) n *= s;
  if (n == 0) return nothing;
  const size_t* s = shape.begin();
  nb::object array =
      shape.size() == 1 ? (*empty)(s[0], *dtype) : (*empty)(nb::make_tuple(s[0], s[1]), *dtype);
  const Lent<T> lent(array, int(shape.size()));  // the array stays where it is
  *data = const_cast<T*>(lent.data());
  return array;
}

bool finite(const float* x, size_t n) {
  uint32_t bad = 0;  // an exponent of ones is infinity or NaN
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bad |= uint32_t((bits & 0x7f800000u) == 0x7f800000u);
  }
  return bad == 0;
}

// Whether every number that a pass returns is one.
bool finite(const PassInput& in, const PassOutput& out, size_t vocabulary, size_t dim) {
  bool all = finite(out.log_sum_exp, in.best.size()) &&
             finite(out.top_log_sum_exp, in.top.size()) &&
             finite(out.logits, in.logits.size() * vocabulary);
  for (size_t i = 0; i < in.taps.size(); ++i)
    all = all && finite(out.taps[i], in.taps[i].second.size() * dim);
  return all;
}

KvType kv_type(const std::string& name) {
  if (name == "f16") return KvType::F16;
  if (name == "q8_0") return KvType::Q8_0;
  throw std::invalid_argument("the KV type must be f16 or q8_0, not " + name);
}

// The states of a running pass. Other threads hold the GIL meanwhile and must not touch them; the
// set is only used with the GIL held.
std::vector<const State*> states_in_use;

const State& idle(const State& s) {
  if (std::find(states_in_use.begin(), states_in_use.end(), &s) != states_in_use.end())
    throw std::invalid_argument("a state is given twice or is in use by a running pass");
  return s;
}
State& idle(State& s) { return const_cast<State&>(idle(const_cast<const State&>(s))); }

class InUse {  // marks states for the length of a pass, and keeps them alive
 public:
  State* add(const nb::handle& object) {
    State* s = nb::cast<State*>(object);
    mine_.emplace_back(nb::borrow(object), &idle(*s));
    states_in_use.push_back(s);
    return s;
  }
  ~InUse() {
    for (const auto& [object, s] : mine_) std::erase(states_in_use, s);
  }

 private:
  std::vector<std::pair<nb::object, const State*>> mine_;
};

using Taps = std::vector<std::pair<int, std::vector<int>>>;

nb::object run(Executor& ex, const nb::list& states, const nb::object& token_array,
               const nb::object& parent_array, const nb::object& sequence_array,
               const nb::object& vector_array, const nb::object& flag_array, std::vector<int> best,
               std::vector<int> top, int k, std::vector<int> logits, Taps taps,
               const Shortlist* shortlist, const std::optional<nb::tuple>& empty) {
  PassInput in;
  const Lent<int32_t> tokens(token_array, 1), parents(parent_array, 1),
      sequences(sequence_array, 1);
  const size_t rows = tokens.shape(0);
  if (parents.shape(0) != rows || sequences.shape(0) != rows)
    throw std::invalid_argument("tokens, parents and sequences must be equally long");
  if (rows > size_t(ex.max_rows())) throw std::invalid_argument("too many rows");
  in.rows = int(rows);
  in.tokens = tokens.data();
  in.parents = parents.data();
  in.sequences = sequences.data();
  std::optional<Lent<float>> vectors;
  if (!vector_array.is_none()) {
    vectors.emplace(vector_array, 2);
    if (vectors->shape(0) != rows || vectors->shape(1) != size_t(ex.dim()))
      throw std::invalid_argument("vectors must be [rows, dim]");
    in.vectors = vectors->data();
  }
  std::optional<Lent<uint8_t>> flags;
  if (!flag_array.is_none()) {
    flags.emplace(flag_array, 1);
    if (flags->shape(0) != rows)
      throw std::invalid_argument("takes_vector must have a flag for each row");
    in.takes_vector = flags->data();
  }
  InUse in_use;
  for (const nb::handle& s : states) {
    if (!nb::isinstance<State>(s)) throw std::invalid_argument("states must be native states");
    in.states.push_back(in_use.add(s));
  }
  in.best = std::move(best), in.top = std::move(top), in.logits = std::move(logits);
  in.k = k;
  if (k < 0 || k > ex.vocabulary()) throw std::invalid_argument("k is out of range");
  if (in.best.size() > rows || in.top.size() > rows || in.logits.size() > rows)
    throw std::invalid_argument("too many rows");
  in.taps = std::move(taps);
  if (shortlist != nullptr && shortlist->vocabulary != ex.vocabulary())
    throw std::invalid_argument("a shortlist was made for another vocabulary");
  in.shortlist = shortlist;

  if (empty && empty->size() != 8) throw std::invalid_argument("empty must have eight entries");

  PassOutput out;
  const auto nothing = [&](size_t i) -> nb::object {
    return empty ? nb::object((*empty)[i]) : nb::none();
  };
  const size_t v = size_t(ex.vocabulary());
  nb::object best_ids = make_array(&out.best_ids, {in.best.size()}, nothing(0));
  nb::object best_logits = make_array(&out.best_logits, {in.best.size()}, nothing(1));
  nb::object lse = make_array(&out.log_sum_exp, {in.best.size()}, nothing(2));
  nb::object top_ids = make_array(&out.top_ids, {in.top.size(), size_t(k)}, nothing(3));
  nb::object top_logits = make_array(&out.top_logits, {in.top.size(), size_t(k)}, nothing(4));
  nb::object top_lse = make_array(&out.top_log_sum_exp, {in.top.size()}, nothing(5));
  nb::object all = make_array(&out.logits, {in.logits.size(), v}, nothing(6));
  nb::list tap_arrays;
  for (const auto& [tap, chosen] : in.taps) {
    float* data = nullptr;
    if (chosen.size() > rows) throw std::invalid_argument("too many tap rows");
    tap_arrays.append(make_array(&data, {chosen.size(), size_t(ex.dim())}, nothing(7)));
    out.taps.push_back(data);
  }
  bool signalled = false, completed;
  {
    const nb::gil_scoped_release release;
    completed = ex.run(in, out, [&] {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) signalled = true;
      return signalled;
    });
  }
  if (signalled) throw nb::python_error();
  if (!completed) return nb::none();
  return nb::make_tuple(best_ids, best_logits, lse, top_ids, top_logits, top_lse, all, tap_arrays,
                        out.seconds, finite(in, out, v, size_t(ex.dim())));
}

}  // namespace

void bind_executor(nb::module_& m) {
  nb::class_<State>(m, "State", "Keys and values of one sequence.")
      .def_prop_ro("length", &State::length)
      .def_prop_ro("capacity", &State::capacity)
      .def_prop_ro("nbytes", &State::nbytes)
      .def(
          "commit", [](State& s, const std::vector<int>& path) { idle(s).commit(path); }, "path"_a)
      .def(
          "truncate", [](State& s, int length) { idle(s).truncate(length); }, "length"_a)
      .def("fork", [](const State& s) { return std::make_unique<State>(idle(s)); })
      .def(
          "poison", [](State& s) { idle(s).poison(); },
          "Fill every slot that is not committed with NaN (tests).")
      .def(
          "fill", [](State& s, int length) { idle(s).fill(length); }, "length"_a,
          "Commit arbitrary values (benchmarks).")
      .def_prop_ro("bytes_per_position",
                   [](const State& s) { return s.shape().chunk_bytes / kSplit; })
      .def(
          "bytes_at",
          [](const State& s, int position) {
            if (position < 0 || position >= s.length())
              throw std::invalid_argument("position is not committed");
            const std::vector<uint8_t> bytes = idle(s).bytes_at(position);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "position"_a, "The keys and values of one committed position (tests).");

  nb::class_<PackedRows>(m, "PackedRows", "Copies of rows of an output matrix, side by side.")
      .def("__len__", [](const PackedRows& p) { return p.ids.size(); });

  nb::class_<Shortlist>(m, "Shortlist", "Tokens to which the head of a pass is restricted.")
      .def(
          "__init__",
          [](Shortlist* self, const Ints& ids, int vocabulary,
             std::shared_ptr<const PackedRows> packed) {
            check_aligned(ids);
            new (self) Shortlist(ids.data(), ids.size(), vocabulary, std::move(packed));
          },
          "ids"_a.noconvert(), "vocabulary"_a, "packed"_a.none() = nb::none())
      .def("__len__", [](const Shortlist& s) { return s.ids.size(); })
      .def_prop_ro(
          "groups", [](const Shortlist& s) { return s.groups.size(); },
          "Groups of 16 outputs that a pass computes for it.");

  nb::class_<Executor>(m, "Executor", "A program with its weights; see backends/cpu/backend.py.")
      .def(
          "__init__",
          [](Executor* self, const std::string& level, int threads, int max_rows,
             size_t weight_bytes) {
            new (self) Executor(choose_level(level, nullptr), threads, max_rows, weight_bytes);
          },
          "level"_a, "threads"_a, "max_rows"_a, "weight_bytes"_a)
      .def(
          "add_matrix",
          [](Executor& ex, const std::string& format, int out, int in,
             const std::optional<Bytes>& raw) {
            const Format f = format_of(format);
            check_shape(f, out, in);
            if (raw) check_raw(f, out, in, raw->size());
            const int id = ex.add_matrix(f, out, in);
            const nb::gil_scoped_release release;
            if (raw) ex.fill_matrix(id, raw->data());
            return id;
          },
          "format"_a, "out"_a, "columns"_a, "raw"_a.noconvert() = nb::none(),
          "Gives a matrix its place; the weights may come later, by fill_matrix.")
      .def(
          "share_matrix",
          [](Executor& ex, const Executor& other, int id) {
            if (&ex == &other) throw std::invalid_argument("an executor has its own matrices");
            return ex.share_matrix(other, id);
          },
          "other"_a, "matrix"_a, nb::keep_alive<1, 2>(),
          "A matrix of another executor, used where it lies.")
      .def(
          "pack_rows",
          [](const Executor& ex, const Ints& ids) {
            check_aligned(ids);
            return ex.pack_rows(std::vector<int>(ids.data(), ids.data() + ids.size()));
          },
          "ids"_a.noconvert(), "Copies of the output matrix's rows of these tokens.")
      .def(
          "fill_matrix",
          [](Executor& ex, int id, const Bytes& raw) {
            if (id < 0 || id >= ex.matrices()) throw std::invalid_argument("unknown matrix");
            const Matrix& m = ex.matrix(id);
            check_raw(m.format, m.out, m.in, raw.size());
            const nb::gil_scoped_release release;
            ex.fill_matrix(id, raw.data());
          },
          "matrix"_a, "raw"_a.noconvert())
      .def(
          "add_vector",
          [](Executor& ex, const Floats& data) {
            check_aligned(data);
            if (data.size() > size_t(1) << 24) throw std::invalid_argument("vector too long");
            return ex.add_vector(data.data(), int(data.size()));
          },
          "data"_a.noconvert())
      .def("add_value", &Executor::add_value, "dim"_a)
      .def(
          "add_rope",
          [](Executor& ex, bool half, int dims, float magnitude, std::vector<double> frequencies) {
            for (const double f : frequencies)
              if (!std::isfinite(f) || f < 0.0 || f > 1e4)
                throw std::invalid_argument("a rope frequency is out of range");
            return ex.add_rope({half, dims, magnitude, std::move(frequencies)});
          },
          "half"_a, "dims"_a, "magnitude"_a, "frequencies"_a)
      .def(
          "embed",
          [](Executor& ex, int out, int table, float scale) {
            ex.add_op(EmbedOp{out, table, scale});
          },
          "out"_a, "table"_a, "scale"_a)
      .def(
          "given", [](Executor& ex, int out) { ex.add_op(GivenOp{out}); }, "out"_a)
      .def(
          "normalize",
          [](Executor& ex, int out, int x, const Norm& norm) {
            ex.add_op(NormalizeOp{out, x, norm_spec(norm)});
          },
          "out"_a, "x"_a, "norm"_a.none())
      .def(
          "concat",
          [](Executor& ex, int out, std::vector<int> xs) {
            ex.add_op(ConcatOp{out, std::move(xs)});
          },
          "out"_a, "xs"_a)
      .def(
          "add",
          [](Executor& ex, int out, int x, int y, int weight, float scale) {
            ex.add_op(AddOp{out, x, y, weight, scale});
          },
          "out"_a, "x"_a, "y"_a, "weight"_a, "scale"_a)
      .def(
          "linear",
          [](Executor& ex, int x, const std::vector<std::vector<int>>& parts, const Norm& norm,
             int residual, const std::string& activation) {
            LinearOp op{x, norm_spec(norm), {}, residual};
            if (activation == "silu")
              op.activation = Activate::Silu;
            else if (activation == "gelu")
              op.activation = Activate::Gelu;
            else if (!activation.empty())
              throw std::invalid_argument("an activation is silu, gelu or none");
            for (const auto& p : parts) {
              if (p.size() != 3) throw std::invalid_argument("a part is (out, matrix, bias)");
              op.parts.push_back({p[0], p[1], p[2]});
            }
            ex.add_op(std::move(op));
          },
          "x"_a, "parts"_a, "norm"_a.none(), "residual"_a, "activation"_a = "")
      .def(
          "attention",
          [](Executor& ex, int out, int q, int k, int v, int layer, int heads, int kv_heads,
             int head_dim, float scale, int rope, const Norm& q_norm, const Norm& k_norm,
             int window, float softcap) {
            ex.add_op(AttentionOp{out, q, k, v, layer, heads, kv_heads, head_dim, scale, rope,
                                  norm_spec(q_norm), norm_spec(k_norm), window, softcap});
          },
          "out"_a, "q"_a, "k"_a, "v"_a, "layer"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a,
          "rope"_a, "q_norm"_a.none(), "k_norm"_a.none(), "window"_a, "softcap"_a)
      .def(
          "gated_mlp",
          [](Executor& ex, int out, int x, int gate, int up, bool gelu, const Norm& norm) {
            ex.add_op(GatedMlpOp{out, x, gate, up, gelu, norm_spec(norm)});
          },
          "out"_a, "x"_a, "gate"_a, "up"_a, "gelu"_a, "norm"_a.none())
      .def(
          "tap", [](Executor& ex, int x) { ex.add_op(TapOp{x}); }, "x"_a)
      .def(
          "head",
          [](Executor& ex, int x, int matrix, int bias, const Norm& norm) {
            ex.add_op(HeadOp{x, matrix, bias, norm_spec(norm)});
          },
          "x"_a, "matrix"_a, "bias"_a, "norm"_a.none())
      .def("finish", &Executor::finish, "vocabulary"_a, "dim"_a)
      .def(
          "new_state",
          [](const Executor& ex, int capacity, const std::string& type) {
            return ex.new_state(capacity, kv_type(type));
          },
          "capacity"_a, "kv_type"_a)
      .def("run", &run, "states"_a, "tokens"_a, "parents"_a, "sequences"_a, "vectors"_a.none(),
           "takes_vector"_a.none(), "best"_a, "top"_a, "k"_a, "logits"_a, "taps"_a,
           "shortlist"_a.none() = nb::none(), "empty"_a = nb::none(),
           nb::sig("def run(self, states: list[State], tokens: object, parents: object, sequences: "
                   "object, vectors: object | None, takes_vector: object | None, best: "
                   "collections.abc.Sequence[int], top: collections.abc.Sequence[int], k: int, "
                   "logits: collections.abc.Sequence[int], taps: list[tuple[int, "
                   "collections.abc.Sequence[int]]], shortlist: Shortlist | None = None, "
                   "empty: tuple[object, ...] | None = None) -> tuple[typing.Any, ...] | None"))
      .def("cancel", &Executor::cancel)
      .def_prop_ro("level", [](const Executor& ex) { return ex.kernels().name; })
      .def_prop_ro("threads", &Executor::threads)
      .def_prop_ro("max_rows", &Executor::max_rows)
      .def_prop_ro("vocabulary", &Executor::vocabulary)
      .def_prop_ro("dim", &Executor::dim)
      .def_prop_ro("weight_bytes", &Executor::weight_bytes);
}
