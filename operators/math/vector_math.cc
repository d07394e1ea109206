#include "operators/math/vector_math.h"

#include "operators/math/chunk_math.h"

namespace headrace::ops {

bool UsesAvx512() { return HasAvx512(); }

template <typename T>
void VectorExp(int64_t n, const T* x, T* y) {
  ForEachVector(n, y, [](const auto& v) { return ChunkExp(v); }, x);
}

template <typename T>
void VectorLog(int64_t n, const T* x, T* y) {
  ForEachVector(n, y, [](const auto& v) { return ChunkLog(v); }, x);
}

template <typename T>
void VectorTanh(int64_t n, const T* x, T* y) {
  ForEachVector(n, y, [](const auto& v) { return ChunkTanh(v); }, x);
}

template <typename T>
void VectorSigmoid(int64_t n, const T* x, T* y) {
  ForEachVector(n, y, [](const auto& v) { return ChunkSigmoid(v); }, x);
}

#define HEADRACE_INSTANTIATE(T)                       \
  template void VectorExp<T>(int64_t, const T*, T*);  \
  template void VectorLog<T>(int64_t, const T*, T*);  \
  template void VectorTanh<T>(int64_t, const T*, T*); \
  template void VectorSigmoid<T>(int64_t, const T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
