// Under the address sanitizer, memory that cannot be had must be an error of ours, as without it, and not the end of
// the test. Exported, since the sanitizer is a library that looks this function up.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
