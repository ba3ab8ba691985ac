// The native module: each part binds itself.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_cpu(nb::module_& m);
void bind_drafting(nb::module_& m);
void bind_executor(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_text(nb::module_& m);

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // daemon threads may outlive the interpreter, with what they hold
  m.doc() = "Divine's native core: CPU levels, executor, sampling, merging, drafting.";
  bind_cpu(m);
  bind_executor(m);
  bind_sampling(m);
  bind_text(m);
  bind_drafting(m);
}
