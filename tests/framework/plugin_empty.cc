// A library without operators.
extern "C" int headrace_plugin_empty() { return 0; }
