// CPU features that GCC 12's __builtin_cpu_supports does not know.
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace divine {

static inline bool has_f16c() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
#else
  return false;
#endif
}

static inline bool has_avx_vnni() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#else
  return false;
#endif
}

}  // namespace divine
