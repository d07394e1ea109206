// Marks what libheadrace.so exports. Everything else, Protocol Buffers included, stays hidden, so that the library can
// be loaded beside others that carry one of their own.
#pragma once

#define HEADRACE_API __attribute__((visibility("default")))
