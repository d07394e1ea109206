// Marks the exports of libheadrace.so. Everything else, including Protocol Buffers, stays hidden, so that the library
// can be loaded together with others that contain their own copy.
#pragma once

#define HEADRACE_API __attribute__((visibility("default")))
