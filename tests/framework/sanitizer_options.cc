// Under a sanitizer, memory that cannot be had must be an error of ours, as without it, and not the end of the test.
// Exported, since the sanitizer is a library that looks these functions up.
#define HEADRACE_SANITIZER_OPTIONS(function)                                  \
  extern "C" __attribute__((visibility("default"))) const char* function();   \
  extern "C" const char* function() { return "allocator_may_return_null=1"; } \
  static_assert(true)

HEADRACE_SANITIZER_OPTIONS(__asan_default_options);
HEADRACE_SANITIZER_OPTIONS(__tsan_default_options);
