// Everything that is asked of the operating system and the processor's control state; porting to
// Windows, macOS or ARM means another os.cpp.
#pragma once
#include <cstddef>

namespace divine::os {

constexpr size_t kHugePage = size_t(2) << 20;

// Zeroed memory, aligned to 2 MiB, in huge pages where the system gives them (small pieces are not
// worth one); committed when first touched. Throws std::bad_alloc.
void* reserve(size_t bytes);
void release(void* memory, size_t bytes) noexcept;

// Logical processors this process may use, at least 1.
int processors();

// Identifies the process, to notice a fork.
long process();

// Gives the core to another thread / tells the core that a loop is waiting.
void yield();
void relax();

// Sets rounding to nearest and keeps subnormals, for this thread, and restores it at the end:
// another library may have switched them.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace divine::os
