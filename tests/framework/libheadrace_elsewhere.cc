// Stands for another libheadrace.
extern "C" __attribute__((visibility("default"))) int headrace_of_elsewhere() { return 0; }
