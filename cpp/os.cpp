#include "os.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace divine::os {

namespace {
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

void* reserve(size_t bytes) {
  const size_t size = round_up(bytes ? bytes : 1, kHugePage);
  if (size < bytes || size > size_t(1) << 46) throw std::bad_alloc();
  const size_t mapped = size + kHugePage;  // room to align
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  char* start = static_cast<char*>(raw);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(start), kHugePage));
  if (aligned > start) munmap(start, size_t(aligned - start));
  char* end = start + mapped;
  if (end > aligned + size) munmap(aligned + size, size_t(end - (aligned + size)));
  // Advice: without it everything works, slower. A huge page for a few kilobytes would be a waste.
  madvise(aligned, size, bytes >= kHugePage / 4 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return aligned;
}

void release(void* memory, size_t bytes) noexcept {
  if (memory != nullptr) munmap(memory, round_up(bytes ? bytes : 1, kHugePage));
}

int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int n = CPU_COUNT(&set);
  return n > 0 ? n : 1;
}

long process() { return long(getpid()); }

void yield() { sched_yield(); }

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

FloatMode::FloatMode() {
#if defined(__x86_64__)
  saved_ = _mm_getcsr();
  _mm_setcsr(0x1f80);  // all exceptions masked, nearest even, subnormals kept
#else
  saved_ = 0;
#endif
}

FloatMode::~FloatMode() {
#if defined(__x86_64__)
  _mm_setcsr(saved_);
#endif
}

}  // namespace divine::os
