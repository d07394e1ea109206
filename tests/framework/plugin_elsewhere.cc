// A library that is linked with a libheadrace which is not the program's.
extern "C" int headrace_of_elsewhere();

extern "C" int headrace_plugin_elsewhere() { return headrace_of_elsewhere(); }
