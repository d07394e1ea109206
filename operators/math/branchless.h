// The exponential function, its relatives, the error function and the sine of a float, as arithmetic without branches
// or calls, which compilers vectorise: each element by the same instructions, in a vector or alone, so with the same
// bits. NaN gives NaN. Relative errors of normal results are at most 3e-7, except NormalDistribution's; smaller ones
// are 0, except those of Erf and SineWithin, which may be subnormal.
//
// The reduction and the polynomial of Exp are those of S. L. Moshier's Cephes library (expf); that of Log1p is a
// minimax fit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace headrace::ops::branchless {

// a · b + c, with one rounding if the target instruction set has it.
inline float MultiplyAdd(float a, float b, float c) {
#if defined(FP_FAST_FMAF)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
// The logarithms of the smallest normal number and of the largest.
inline constexpr float kLogSmallest = -0x1.5d589ep6F;
inline constexpr float kLogLargest = 0x1.62e42ep6F;

// Comparisons of integers and operations on their bits cost less than those of floats where a loop is busy with these.

inline int32_t BitsOf(float x) { return std::bit_cast<int32_t>(x); }
// Those of |x|, which are in the order of |x|; then come those of NaNs.
inline int32_t MagnitudeOf(float x) { return BitsOf(x) & 0x7fffffff; }

// value if `condition`, else 0.
inline float ValueIf(bool condition, float value) {
  return std::bit_cast<float>(BitsOf(value) & -static_cast<int32_t>(condition));
}

// NaN if x is, else `value`.
inline float NaNFrom(float x, float value) {
  return std::bit_cast<float>(BitsOf(value) | -static_cast<int32_t>(MagnitudeOf(x) > BitsOf(kInfinity)));
}

// Of |x|, and at most `largest`, also if x is NaN.
inline int32_t ClampedMagnitude(float x, float largest) {
  const int32_t magnitude = MagnitudeOf(x);
  return magnitude < BitsOf(largest) ? magnitude : BitsOf(largest);
}

inline int32_t SignOf(float x) { return BitsOf(x) & std::numeric_limits<int32_t>::min(); }

// exp(x) for kLogSmallest <= x <= kLogLargest; for others, anything.
inline float ExpWithin(float x) {
  // A sum with this is a whole number, and its last bits are those of that number.
  constexpr float kRounding = 0x1.8p23F;
  const float shifted = MultiplyAdd(x, 0x1.715476p0F, kRounding);
  const float count = shifted - kRounding;
  const float rest = MultiplyAdd(count, 2.12194440e-4F, MultiplyAdd(count, -0.693359375F, x));
  float p = 1.9875691500e-4F;
  p = MultiplyAdd(p, rest, 1.3981999507e-3F);
  p = MultiplyAdd(p, rest, 8.3334519073e-3F);
  p = MultiplyAdd(p, rest, 4.1665795894e-2F);
  p = MultiplyAdd(p, rest, 1.6666665459e-1F);
  p = MultiplyAdd(p, rest, 5.0000001201e-1F);
  p = MultiplyAdd(p, rest, 1.0F);
  p = MultiplyAdd(p, rest, 1.0F);
  const auto exponent = static_cast<uint32_t>(BitsOf(shifted)) << 23;
  return std::bit_cast<float>(static_cast<uint32_t>(BitsOf(p)) + exponent);
}

inline float Exp(float x) {
  const float exp = ValueIf(x >= kLogSmallest, ExpWithin(x));
  return x <= kLogLargest ? exp : x + kInfinity;
}

// 1 / (1 + exp(-x))
inline float Sigmoid(float x) {
  const float exp = ExpWithin(std::bit_cast<float>(ClampedMagnitude(x, -kLogSmallest) | SignOf(-x)));
  return NaNFrom(x, ValueIf(!(x < kLogSmallest), 1 / (1 + exp)));
}

// log(1 + x) for 0 <= x <= 1.
inline float Log1pWithin(float x) {
  float p = 0x1.5f9526p-8F;
  p = MultiplyAdd(p, x, -0x1.ec976cp-6F);
  p = MultiplyAdd(p, x, 0x1.446b50p-4F);
  p = MultiplyAdd(p, x, -0x1.19ad42p-3F);
  p = MultiplyAdd(p, x, 0x1.884430p-3F);
  p = MultiplyAdd(p, x, -0x1.fd1318p-3F);
  p = MultiplyAdd(p, x, 0x1.5535d8p-2F);
  p = MultiplyAdd(p, x, -0x1.ffff14p-2F);
  return MultiplyAdd(x * x, p, x);
}

// log(1 + exp(x))
inline float Softplus(float x) {
  const float minus_magnitude = -std::bit_cast<float>(ClampedMagnitude(x, -kLogSmallest));
  const float log = ValueIf(!(x < kLogSmallest), Log1pWithin(ExpWithin(minus_magnitude)));
  return (x < 0 ? 0 : x) + log;
}

// The error function: a quotient of polynomials of x². At 4, from where on the result is 1, theirs is at least 1.
inline float Erf(float x) {
  const float magnitude = std::bit_cast<float>(ClampedMagnitude(x, 4));
  const float square = magnitude * magnitude;
  float p = 0x1.0aa7ccp-19F;
  p = MultiplyAdd(p, square, 0x1.2a63dep-12F);
  p = MultiplyAdd(p, square, 0x1.fd0362p-9F);
  p = MultiplyAdd(p, square, 0x1.b30332p-5F);
  p = MultiplyAdd(p, square, 0x1.8c62dcp-3F);
  p = MultiplyAdd(p, square, 0x1.20dd76p+0F);
  float q = 0x1.39e662p-15F;
  q = MultiplyAdd(q, square, 0x1.36cc0cp-10F);
  q = MultiplyAdd(q, square, 0x1.f251aep-7F);
  q = MultiplyAdd(q, square, 0x1.d87a82p-4F);
  q = MultiplyAdd(q, square, 0x1.027cfep-1F);
  q = MultiplyAdd(q, square, 1.0F);
  const int32_t erf = BitsOf(magnitude * p / q);
  return NaNFrom(x, std::bit_cast<float>((erf < BitsOf(1.0F) ? erf : BitsOf(1.0F)) | SignOf(x)));
}

// The sine, or the cosine with one quarter of a turn more, or minus the sine with two, for |x| <= kLargestAngle, where
// the whole number of quarters in x is exact: Taylor polynomials of what is left.
inline constexpr float kLargestAngle = 1e6F;
inline float SineWithin(float x, int32_t quarters) {
#if defined(FP_FAST_FMAF)
  constexpr float kRounding = 0x1.8p23F;  // as in ExpWithin
  const float shifted = MultiplyAdd(x, 0x1.45f306p-1F, kRounding);
  const float count = shifted - kRounding;
  // π/2 in three parts; the first difference is exact.
  const float rest =
      MultiplyAdd(count, 0x1.ee59dap-50F, MultiplyAdd(count, 0x1.777a5cp-25F, MultiplyAdd(count, -0x1.921fb6p+0F, x)));
  const int32_t turn = BitsOf(shifted) + quarters;
#else
  constexpr double kRounding = 0x1.8p52;
  const double count = (x * 0.63661977236758134308 + kRounding) - kRounding;
  const auto rest = static_cast<float>((x - count * 0x1.921fb544p0) - count * 0x1.0b4611a6p-34);
  const int32_t turn = static_cast<int32_t>(count) + quarters;
#endif
  const float square = rest * rest;
  float sine = 1.0F / 362880;
  sine = MultiplyAdd(sine, square, -1.0F / 5040);
  sine = MultiplyAdd(sine, square, 1.0F / 120);
  sine = MultiplyAdd(sine, square, -1.0F / 6);
  sine = MultiplyAdd(rest * square, sine, rest);
  // −0 gives −0. Only ±0 leaves nothing.
  sine = std::bit_cast<float>(BitsOf(sine) | (BitsOf(x) & -static_cast<int32_t>(MagnitudeOf(rest) == 0)));
  float cosine = 1.0F / 40320;
  cosine = MultiplyAdd(cosine, square, -1.0F / 720);
  cosine = MultiplyAdd(cosine, square, 1.0F / 24);
  cosine = MultiplyAdd(cosine, square, -0.5F);
  cosine = MultiplyAdd(cosine, square, 1.0F);
  return std::bit_cast<float>(BitsOf((turn & 1) != 0 ? cosine : sine) ^ ((turn & 2) << 30));
}

// Φ, the distribution function of the normal distribution, and its density. Φ has an absolute error of at most 1e-7:
// far below 0, where it is small, digits cancel.
inline float NormalDistribution(float x) { return 0.5F * (1.0F + Erf(x * 0.70710678118654752440F)); }
inline float NormalDensity(float x) { return 0.39894228040143267794F * Exp(-0.5F * (x * x)); }

}  // namespace headrace::ops::branchless
