// uniform_random, gaussian_random, truncated_gaussian_random. Number i of a tensor depends on the seed and on i alone,
// and is made with IEEE arithmetic only (and a logarithm in the far tails of the normal distribution), so that it is
// the same on every machine.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/philox.h"

namespace headrace::ops {

PhiloxStream StreamOfSeed(int32_t seed, uint64_t stream) {
  if (seed != 0) {
    return PhiloxStream(static_cast<uint32_t>(seed), stream);
  }
  std::random_device entropy;
  const uint64_t high = entropy();
  return PhiloxStream(high << 32 | entropy(), stream);
}

namespace {

// Value of a polynomial whose coefficients are given from the constant upwards.
template <size_t N>
double Polynomial(const double (&coefficients)[N], double x) {
  double value = coefficients[N - 1];
  for (size_t i = N - 1; i > 0; --i) {
    value = value * x + coefficients[i - 1];
  }
  return value;
}

// The quantile of the standard normal distribution, 0 < p < 1, to about 16 digits: algorithm AS 241 (PPND16) of M. J.
// Wichura, "The percentage points of the normal distribution", Applied Statistics 37 (1988).
double NormalQuantile(double p) {
  static constexpr double kCentralA[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                         1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                         3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static constexpr double kCentralB[] = {1.0,
                                         4.2313330701600911252e+1,
                                         6.8718700749205790830e+2,
                                         5.3941960214247511077e+3,
                                         2.1213794301586595867e+4,
                                         3.9307895800092710610e+4,
                                         2.8729085735721942674e+4,
                                         5.2264952788528545610e+3};
  static constexpr double kMiddleC[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                        3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                        2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kMiddleD[] = {1.0,
                                        2.05319162663775882187e0,
                                        1.67638483018380384940e0,
                                        6.89767334985100004550e-1,
                                        1.48103976427480074590e-1,
                                        1.51986665636164571966e-2,
                                        5.47593808499534494600e-4,
                                        1.05075007164441684324e-9};
  static constexpr double kTailE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                      2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                      2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kTailF[] = {1.0,
                                      5.99832206555887937690e-1,
                                      1.36929880922735805310e-1,
                                      1.48753612908506148525e-2,
                                      7.86869131145613259100e-4,
                                      1.84631831751005468180e-5,
                                      1.42151175831644588870e-7,
                                      2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * Polynomial(kCentralA, r) / Polynomial(kCentralB, r);
  }
  const double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  const double x = r <= 5.0 ? Polynomial(kMiddleC, r - 1.6) / Polynomial(kMiddleD, r - 1.6)
                            : Polynomial(kTailE, r - 5.0) / Polynomial(kTailF, r - 5.0);
  return q < 0 ? -x : x;
}

// Number `i` of the stream, uniform in (0, 1): a multiple of 2^-53 that is neither 0 nor 1.
double UniformOpen(const PhiloxBlock& block, size_t i) {
  const uint64_t bits = (static_cast<uint64_t>(block[2 * i]) << 32 | block[2 * i + 1]) >> 12;
  return static_cast<double>(2 * bits + 1) * 0x1p-53;
}

// out[i] = transform(the i-th number in (0, 1) of the stream).
template <typename T, typename Transform>
void FillFromStream(const ExecutionContext& ctx, Transform&& transform) {
  LoDTensor* out = ctx.Output("Out");
  T* data = out->mutable_data<T>();
  const int64_t numel = out->numel();
  const PhiloxStream stream = StreamOfSeed(ctx.Attr<int32_t>("seed"));
  for (int64_t i = 0; i < numel; i += 2) {
    const PhiloxBlock block = stream.Block(static_cast<uint64_t>(i) / 2);
    data[i] = static_cast<T>(transform(UniformOpen(block, 0)));
    if (i + 1 < numel) {
      data[i + 1] = static_cast<T>(transform(UniformOpen(block, 1)));
    }
  }
}

template <typename T>
void UniformKernel(const ExecutionContext& ctx) {
  const auto min = static_cast<double>(ctx.Attr<float>("min"));
  const auto max = static_cast<double>(ctx.Attr<float>("max"));
  // Rounding to T must not reach `max`.
  const T below_max = min < max ? std::nextafter(static_cast<T>(max), static_cast<T>(min)) : static_cast<T>(max);
  FillFromStream<T>(ctx, [=](double u) { return std::min(static_cast<T>(min + (max - min) * u), below_max); });
}

template <typename T>
void GaussianKernel(const ExecutionContext& ctx) {
  const auto mean = static_cast<double>(ctx.Attr<float>("mean"));
  const auto std = static_cast<double>(ctx.Attr<float>("std"));
  FillFromStream<T>(ctx, [=](double u) { return mean + std * NormalQuantile(u); });
}

template <typename T>
void TruncatedGaussianKernel(const ExecutionContext& ctx) {
  const auto mean = static_cast<double>(ctx.Attr<float>("mean"));
  const auto std = static_cast<double>(ctx.Attr<float>("std"));
  constexpr double kBelowMinus2 = 0.022750131948179207;  // Φ(−2)
  FillFromStream<T>(ctx,
                    [=](double u) { return mean + std * NormalQuantile(kBelowMinus2 + (1 - 2 * kBelowMinus2) * u); });
}

void InferRandomShape(InferShapeContext& ctx) {
  const auto& shape = ctx.Attr<std::vector<int64_t>>("shape");
  HR_ENFORCE(Numel(shape) >= 0, InvalidArgument, "attribute shape: expected known dimensions, got ", ToString(shape));
  SetOutput(ctx, "Out", shape, TypeAttr(ctx, "dtype"));
}

void InferUniformShape(InferShapeContext& ctx) {
  const float min = ctx.Attr<float>("min");
  const float max = ctx.Attr<float>("max");
  HR_ENFORCE(std::isfinite(min) && std::isfinite(max) && min <= max, InvalidArgument,
             "attributes min and max: expected finite numbers with min <= max, got ", min, " and ", max);
  InferRandomShape(ctx);
}

OpRegistrar&& CommonAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Output("Out", "the tensor of random numbers")
      .Attr<std::vector<int64_t>>("shape", "dims of Out")
      .Attr<int32_t>("dtype", "DataType of Out", static_cast<int32_t>(DataType::kFloat32))
      .Attr<int32_t>("seed", "the same numbers whenever it is the same; 0: others at each run", 0)
      .KernelTypeFromAttr("dtype");
}

OpRegistrar&& GaussianAttrs(OpRegistrar&& op) {
  return CommonAttrs(std::move(op))
      .Attr<float>("mean", "mean", 0.0f,
                   [](const float& mean) {
                     HR_ENFORCE(std::isfinite(mean), InvalidArgument, "attribute mean: expected a finite number, got ",
                                mean);
                   })
      .Attr<float>("std", "standard deviation", 1.0f, [](const float& std) {
        HR_ENFORCE(std::isfinite(std) && std >= 0, InvalidArgument, "attribute std: expected a number >= 0, got ", std);
      });
}

}  // namespace

HEADRACE_REGISTER_OP(uniform_random)
    .Comment("Random numbers uniform in [min, max), from Philox4x32-10.")
    .With(CommonAttrs)
    .Attr<float>("min", "lower bound", -1.0f)
    .Attr<float>("max", "upper bound", 1.0f)
    .InferShape(InferUniformShape)
    .Kernel<float>(UniformKernel<float>)
    .Kernel<double>(UniformKernel<double>);

HEADRACE_REGISTER_OP(gaussian_random)
    .Comment("Normally distributed random numbers, from Philox4x32-10 by the inverse of the distribution function.")
    .With(GaussianAttrs)
    .InferShape(InferRandomShape)
    .Kernel<float>(GaussianKernel<float>)
    .Kernel<double>(GaussianKernel<double>);

HEADRACE_REGISTER_OP(truncated_gaussian_random)
    .Comment("As gaussian_random, from the part of the distribution within two standard deviations of the mean.")
    .With(GaussianAttrs)
    .InferShape(InferRandomShape)
    .Kernel<float>(TruncatedGaussianKernel<float>)
    .Kernel<double>(TruncatedGaussianKernel<double>);

}  // namespace headrace::ops
