// The exponential function, its relatives, the logarithm, the error function, the sine and the arc functions of a
// float, as arithmetic without branches or calls, which compilers vectorise: each element by the same instructions, in
// a vector or alone, so with the same bits. NaN gives NaN. Relative errors of normal results are at most 3e-7 (of
// Tanh 4e-7), except NormalDistribution's; smaller ones are 0, except those of ExpLinear, Erf, Tanh, SineWithin,
// ArcSine and ArcTangent, which may be subnormal.
//
// The reductions and the polynomials of Exp, Log, ArcSine and ArcTangent are those of S. L. Moshier's Cephes library
// (expf, logf, asinf, atanf); that of Log1p and the quotient of Tanh are minimax fits.
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

// A polynomial of x by its coefficients, that of the highest power first.
inline float Polynomial(float /*x*/, float constant) { return constant; }
template <typename... Coefficients>
float Polynomial(float x, float highest, float next, Coefficients... others) {
  return Polynomial(x, MultiplyAdd(highest, x, next), others...);
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

// exp(x) = exp(rest) · 2^count for kLogSmallest <= x <= kLogLargest; for others, anything.
struct ExpParts {
  explicit ExpParts(float x) {
    // A sum with this is a whole number, and its last bits are those of that number.
    constexpr float kRounding = 0x1.8p23F;
    const float shifted = MultiplyAdd(x, 0x1.715476p0F, kRounding);
    const float count = shifted - kRounding;
    rest = MultiplyAdd(count, 2.12194440e-4F, MultiplyAdd(count, -0.693359375F, x));
    slope = Polynomial(rest, 1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F,
                       5.0000001201e-1F, 1.0F);
    exponent = static_cast<uint32_t>(BitsOf(shifted)) << 23;
  }

  // value · 2^count, of a value that is not small.
  float Scaled(float value) const { return std::bit_cast<float>(static_cast<uint32_t>(BitsOf(value)) + exponent); }

  float rest;
  float slope;  // (exp(rest) − 1) / rest
  uint32_t exponent;
};

// exp(x) for kLogSmallest <= x <= kLogLargest; for others, anything.
inline float ExpWithin(float x) {
  const ExpParts parts(x);
  return parts.Scaled(MultiplyAdd(parts.slope, parts.rest, 1.0F));
}

inline float Exp(float x) {
  const float exp = ValueIf(x >= kLogSmallest, ExpWithin(x));
  return x <= kLogLargest ? exp : x + kInfinity;
}

// exp(x) − 1 where x < 0, else x
inline float ExpLinear(float x) {
  const ExpParts parts(x < kLogSmallest ? kLogSmallest : x);
  const float scale = parts.Scaled(1.0F);
  const float less = MultiplyAdd(parts.slope * parts.rest, scale, scale - 1.0F);
  return x < 0 ? less : x;
}

// The natural logarithm: −infinity of 0, NaN of what is less.
inline float Log(float x) {
  constexpr float kSmallest = std::numeric_limits<float>::min();
  constexpr uint32_t kRootOfHalf = 0x3f3504f3;  // the bits of √½
  const bool is_subnormal = x < kSmallest;
  const auto bits = static_cast<uint32_t>(BitsOf(is_subnormal ? x * 0x1p23F : x));
  // x = 2^count · (1 + rest), with 1 + rest from √½ to √2
  const int32_t steps = static_cast<int32_t>(bits - kRootOfHalf) >> 23;
  const auto count = static_cast<float>(is_subnormal ? steps - 23 : steps);
  const float rest = std::bit_cast<float>(bits - (static_cast<uint32_t>(steps) << 23)) - 1.0F;
  const float square = rest * rest;
  const float p =
      Polynomial(rest, 7.0376836292e-2F, -1.1514610310e-1F, 1.1676998740e-1F, -1.2420140846e-1F, 1.4249322787e-1F,
                 -1.6668057665e-1F, 2.0000714765e-1F, -2.4999993993e-1F, 3.3333331174e-1F);
  const float small = MultiplyAdd(square, -0.5F, MultiplyAdd(count, -2.12194440e-4F, rest * square * p));
  const float log = MultiplyAdd(count, 0.693359375F, rest + small);
  const float of_limit = x == 0 ? -kInfinity : x < 0 ? std::numeric_limits<float>::quiet_NaN() : x;
  return x > 0 && x < kInfinity ? log : of_limit;
}

// 1 / (1 + exp(-x))
inline float Sigmoid(float x) {
  const float exp = ExpWithin(std::bit_cast<float>(ClampedMagnitude(x, -kLogSmallest) | SignOf(-x)));
  return NaNFrom(x, ValueIf(!(x < kLogSmallest), 1 / (1 + exp)));
}

// log(1 + x) for 0 <= x <= 1.
inline float Log1pWithin(float x) {
  const float p = Polynomial(x, 0x1.5f9526p-8F, -0x1.ec976cp-6F, 0x1.446b50p-4F, -0x1.19ad42p-3F, 0x1.884430p-3F,
                             -0x1.fd1318p-3F, 0x1.5535d8p-2F, -0x1.ffff14p-2F);
  return MultiplyAdd(x * x, p, x);
}

// log(1 + exp(x))
inline float Softplus(float x) {
  const float minus_magnitude = -std::bit_cast<float>(ClampedMagnitude(x, -kLogSmallest));
  const float log = ValueIf(!(x < kLogSmallest), Log1pWithin(ExpWithin(minus_magnitude)));
  return (x < 0 ? 0 : x) + log;
}

// At most 1, with the sign of x; `magnitude` is not negative. NaN if x is.
inline float SignedUpToOne(float x, float magnitude) {
  const int32_t bits = BitsOf(magnitude);
  return NaNFrom(x, std::bit_cast<float>((bits < BitsOf(1.0F) ? bits : BitsOf(1.0F)) | SignOf(x)));
}

// The error function: a quotient of polynomials of x². At 4, from where on the result is 1, theirs is at least 1.
inline float Erf(float x) {
  const float magnitude = std::bit_cast<float>(ClampedMagnitude(x, 4));
  const float square = magnitude * magnitude;
  const float p = Polynomial(square, 0x1.0aa7ccp-19F, 0x1.2a63dep-12F, 0x1.fd0362p-9F, 0x1.b30332p-5F, 0x1.8c62dcp-3F,
                             0x1.20dd76p+0F);
  const float q =
      Polynomial(square, 0x1.39e662p-15F, 0x1.36cc0cp-10F, 0x1.f251aep-7F, 0x1.d87a82p-4F, 0x1.027cfep-1F, 1.0F);
  return SignedUpToOne(x, magnitude * p / q);
}

// The hyperbolic tangent, likewise; the result is 1 from 9.02 on, and the quotient at 9.25 at least 1.
inline float Tanh(float x) {
  const float magnitude = std::bit_cast<float>(ClampedMagnitude(x, 9.25F));
  const float square = magnitude * magnitude;
  const float p = Polynomial(square, 0x1.c9aae8p-27F, 0x1.595842p-16F, 0x1.c9f9dap-9F, 0x1.120476p-3F, 1.0F);
  const float q = Polynomial(square, 0x1.a0bd48p-21F, 0x1.5843bep-12F, 0x1.a7dfe2p-6F, 0x1.de5784p-2F, 1.0F);
  return SignedUpToOne(x, magnitude * p / q);
}

// The arc tangent: of x, of −1 / x or of (x − 1) / (x + 1), whichever is small, and what is missing.
inline float ArcTangent(float x) {
  const float magnitude = std::bit_cast<float>(MagnitudeOf(x));
  const bool is_large = magnitude > 2.414213562373095F;    // tan(3π/8)
  const bool is_small = magnitude <= 0.4142135623730950F;  // tan(π/8)
  const float numerator = is_large ? -1.0F : is_small ? magnitude : magnitude - 1.0F;
  const float denominator = is_large ? magnitude : is_small ? 1.0F : magnitude + 1.0F;
  const float missing = is_large ? 0x1.921fb6p+0F : is_small ? 0.0F : 0x1.921fb6p-1F;
  const float rest = numerator / denominator;
  const float square = rest * rest;
  const float p = Polynomial(square, 8.05374449538e-2F, -1.38776856032e-1F, 1.99777106478e-1F, -3.33329491539e-1F);
  const float arc = missing + MultiplyAdd(p * square, rest, rest);
  return std::bit_cast<float>(BitsOf(arc) | SignOf(x));
}

// The arc sine of |x|, of |x| up to ½; of more, that of √((1 − |x|) / 2), which is half of the arc cosine of |x|.
inline float ArcSineOfSmaller(float magnitude) {
  const bool is_small = magnitude <= 0.5F;
  const float square = is_small ? magnitude * magnitude : 0.5F * (1.0F - magnitude);
  const float small = is_small ? magnitude : std::sqrt(square);
  const float p =
      Polynomial(square, 4.2163199048e-2F, 2.4181311049e-2F, 4.5470025998e-2F, 7.4953002686e-2F, 1.6666752422e-1F);
  return MultiplyAdd(p * square, small, small);
}

// NaN beyond ±1, and likewise the arc cosine.
inline float ArcSine(float x) {
  const float magnitude = std::bit_cast<float>(MagnitudeOf(x));
  const float arc = ArcSineOfSmaller(magnitude);
  const float of_magnitude = magnitude > 0.5F ? 0x1.921fb6p+0F - 2.0F * arc : arc;
  return std::bit_cast<float>(BitsOf(of_magnitude) | SignOf(x));
}
inline float ArcCosine(float x) {
  const float magnitude = std::bit_cast<float>(MagnitudeOf(x));
  const float arc = ArcSineOfSmaller(magnitude);
  const float of_large = x > 0 ? 2.0F * arc : 0x1.921fb6p+1F - 2.0F * arc;
  const float of_small = 0x1.921fb6p+0F - (x > 0 ? arc : -arc);
  return magnitude > 0.5F ? of_large : of_small;
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
  const float higher = Polynomial(square, 1.0F / 362880, -1.0F / 5040, 1.0F / 120, -1.0F / 6);
  float sine = MultiplyAdd(rest * square, higher, rest);
  // −0 gives −0. Only ±0 leaves nothing.
  sine = std::bit_cast<float>(BitsOf(sine) | (BitsOf(x) & -static_cast<int32_t>(MagnitudeOf(rest) == 0)));
  const float cosine = Polynomial(square, 1.0F / 40320, -1.0F / 720, 1.0F / 24, -0.5F, 1.0F);
  return std::bit_cast<float>(BitsOf((turn & 1) != 0 ? cosine : sine) ^ ((turn & 2) << 30));
}

// Φ, the distribution function of the normal distribution, and its density. Φ has an absolute error of at most 1e-7:
// far below 0, where it is small, digits cancel.
inline float NormalDistribution(float x) { return 0.5F * (1.0F + Erf(x * 0.70710678118654752440F)); }
inline float NormalDensity(float x) { return 0.39894228040143267794F * Exp(-0.5F * (x * x)); }

}  // namespace headrace::ops::branchless
