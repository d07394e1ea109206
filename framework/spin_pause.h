// A pause for a processor that spins: it saves power, and leaves the core's units to its other thread.
#pragma once

namespace headrace {

inline void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace headrace
