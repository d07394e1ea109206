// batch_norm: each channel normalised over the batch.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/layout.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// X as [images, channels, pixels]; where the channels come last, each pixel counts as an image.
struct Channels {
  Channels(const AttributeIndex& op, const DDim& x)
      : images(HasChannelsLast(op) ? Numel(x, 0, x.size() - 1) : x[0]),
        channels(HasChannelsLast(op) ? x.back() : x[1]),
        pixels(HasChannelsLast(op) ? 1 : Numel(x, 2, x.size())),
        count(images * pixels) {}

  // Calls visit(c) for each channel, from several threads.
  template <typename Visit>
  void ForEachChannel(const Visit& visit) const {
    ParallelFor(channels, RowsPerBlock(2 * count), [&visit](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        visit(c);
      }
    });
  }

  // Calls run(offset of a row of `pixels` elements of channel c) for each image.
  template <typename Run>
  void ForEachRow(int64_t c, Run&& run) const {
    for (int64_t i = 0; i < images; ++i) {
      run((i * channels + c) * pixels);
    }
  }

  // Σ at(i) over the elements of channel c.
  template <typename T, typename At>
  double SumOfChannel(int64_t c, At&& at) const {
    double sum = 0;
    ForEachRow(
        c, [&](int64_t row) { sum += static_cast<double>(SumOf<T>(pixels, [&](int64_t i) { return at(row + i); })); });
    return sum;
  }

  // Whether the pixels of a channel are so few that they are read a whole image at a time, as `columns()` columns of a
  // matrix, rather than channel by channel.
  bool HasFewPixels() const { return pixels < 16; }
  int64_t columns() const { return channels * pixels; }

  // sums[c] = Σ at(element, column) over the elements of channel c. The order depends on the dims alone: parts of the
  // images, of which a thread takes some, then those of each column, then the pixels.
  template <typename At>
  void SumColumns(const At& at, double* sums) const {
    const int64_t n = columns();
    Tensor memory;
    double* totals = Scratch<double>(&memory, (1 + Parts()) * n);
    double* parts = totals + n;
    ForEachPart([&](int64_t begin, int64_t end, int64_t first, int64_t width, int64_t place) {
      double column_sums[kWidth] = {};
      for (int64_t image = begin; image < end; ++image) {
        const int64_t row = image * n + first;
        for (int64_t j = 0; j < width; ++j) {
          column_sums[j] += static_cast<double>(at(row + j, first + j));
        }
      }
      std::copy_n(column_sums, width, parts + place);
    });
    AddParts([=](int64_t place, int64_t, double) { return parts[place]; }, totals, sums);
  }

  // Mean and variance, with divisor `count`, of each channel, in the order of SumColumns. Each part is read once, as
  // differences from its first row: their squares are at most as many times too large as the part has rows, whatever
  // the mean. Parts are combined as in Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for
  // Computing Sample Variances (1979).
  template <typename T>
  void Moments(const T* x, double* means, double* variances) const {
    const int64_t n = columns();
    Tensor memory;
    double* totals = Scratch<double>(&memory, (2 + 2 * Parts()) * n);
    double* column_means = totals + n;
    double* sums = column_means + n;
    double* squares = sums + Parts() * n;  // of the differences from the mean of the part
    ForEachPart([=](int64_t begin, int64_t end, int64_t first, int64_t width, int64_t place) {
      double column_sums[kWidth] = {};
      double column_squares[kWidth] = {};
      const T* origin = x + begin * n + first;
      for (int64_t row = begin; row < end; row += kRowsTogether) {
        AddDifferences(origin, x + row * n + first, std::min(kRowsTogether, end - row), n, width, column_sums,
                       column_squares);
      }
      const auto rows = static_cast<double>(end - begin);
      for (int64_t j = 0; j < width; ++j) {
        sums[place + j] = column_sums[j] + rows * static_cast<double>(origin[j]);
        squares[place + j] = column_squares[j] - column_sums[j] * column_sums[j] / rows;
      }
    });
    const auto divide = [divisor = static_cast<double>(count)](double sum) { return sum / divisor; };
    AddParts([=](int64_t place, int64_t, double) { return sums[place]; }, totals, means);
    std::transform(means, means + channels, means, divide);
    FillColumns([means](int64_t c) { return means[c]; }, column_means);
    AddParts(
        [=](int64_t place, int64_t column, double rows) {
          const double difference = sums[place] / rows - column_means[column];
          return squares[place] + rows * difference * difference;
        },
        totals, variances);
    std::transform(variances, variances + channels, variances, divide);
  }

  // to[column] = of(c) for each column of channel c.
  template <typename T, typename Of>
  void FillColumns(const Of& of, T* to) const {
    if (pixels == 1) {  // in vectors
      HEADRACE_INDEPENDENT_ITERATIONS
      for (int64_t c = 0; c < channels; ++c) {
        to[c] = of(c);
      }
      return;
    }
    for (int64_t c = 0; c < channels; ++c) {
      std::fill_n(to + c * pixels, pixels, of(c));
    }
  }

  // to[element] = at(element, column), by several threads.
  template <typename T, typename At>
  void FillElements(const At& at, T* to) const {
    ParallelFor(images, RowsPerBlock(columns()), [&, n = columns()](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) {
        HEADRACE_INDEPENDENT_ITERATIONS
        for (int64_t j = 0; j < n; ++j) {
          to[image * n + j] = at(image * n + j, j);
        }
      }
    });
  }

  int64_t images;
  int64_t channels;
  int64_t pixels;
  int64_t count;  // elements of a channel

 private:
  static constexpr int64_t kWidth = 256;        // columns at a time, whose sums stay in the nearest cache
  static constexpr int64_t kRowsTogether = 16;  // rows whose sums are so short that they need not be in double

  int64_t RowsPerPart() const {
    constexpr int64_t kMaxParts = 64;
    return std::max(RowsPerBlock(columns()), (images + kMaxParts - 1) / kMaxParts);
  }
  int64_t Parts() const { return (images + RowsPerPart() - 1) / RowsPerPart(); }

  // Calls visit(first image, their end, first column, how many columns, place of its sum among those of all parts) for
  // each part of the images and up to kWidth columns, from several threads.
  template <typename Visit>
  void ForEachPart(const Visit& visit) const {
    ParallelFor(images, RowsPerPart(), [&visit, n = columns(), size = RowsPerPart()](int64_t begin, int64_t end) {
      for (int64_t first = 0; first < n; first += kWidth) {
        visit(begin, end, first, std::min(kWidth, n - first), begin / size * n + first);
      }
    });
  }

  // sums[c] = Σ of(place, column, images of the part) over the parts of each column of channel c. `totals`: those of
  // the columns.
  template <typename Of>
  void AddParts(const Of& of, double* totals, double* sums) const {
    const int64_t n = columns();
    std::fill_n(totals, n, 0.0);
    for (int64_t part = 0; part < Parts(); ++part) {
      const auto rows = static_cast<double>(std::min(RowsPerPart(), images - part * RowsPerPart()));
      HEADRACE_INDEPENDENT_ITERATIONS
      for (int64_t j = 0; j < n; ++j) {
        totals[j] += of(part * n + j, j, rows);
      }
    }
    if (pixels == 1) {
      std::copy_n(totals, n, sums);
      return;
    }
    for (int64_t c = 0; c < channels; ++c) {
      sums[c] = std::accumulate(totals + c * pixels, totals + (c + 1) * pixels, 0.0);
    }
  }

  // Adds the differences of `rows` rows, n apart, from `origin`, and their squares, to the sums of the columns.
  template <typename T>
  static void AddDifferences(const T* origin, const T* row, int64_t rows, int64_t n, int64_t width, double* sums,
                             double* squares) {
    T row_sums[kWidth] = {};
    T row_squares[kWidth] = {};
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4, row += 4 * n) {
      for (int64_t j = 0; j < width; ++j) {
        const T a = row[j] - origin[j];
        const T b = row[n + j] - origin[j];
        const T c = row[2 * n + j] - origin[j];
        const T d = row[3 * n + j] - origin[j];
        row_sums[j] += (a + b) + (c + d);
        row_squares[j] += (a * a + b * b) + (c * c + d * d);
      }
    }
    for (; i < rows; ++i, row += n) {
      for (int64_t j = 0; j < width; ++j) {
        const T difference = row[j] - origin[j];
        row_sums[j] += difference;
        row_squares[j] += difference * difference;
      }
    }
    for (int64_t j = 0; j < width; ++j) {
      sums[j] += static_cast<double>(row_sums[j]);
      squares[j] += static_cast<double>(row_squares[j]);
    }
  }
};

bool UsesRunningStatistics(const AttributeIndex& op) {
  return op.Attr<bool>("is_test") || op.Attr<bool>("use_global_stats");
}

template <typename T>
void BatchNormKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const Channels s(ctx.attrs(), x_tensor.dims());
  const bool running = UsesRunningStatistics(ctx.attrs());
  const double epsilon = ctx.Attr<double>("epsilon");
  const auto momentum = static_cast<T>(ScalarInputOr(ctx, "MomentumTensor", "momentum"));
  T* y = ctx.Output("Y")->mutable_data<T>();
  T* mean_out = ctx.Output("MeanOut")->mutable_data<T>();
  T* variance_out = ctx.Output("VarianceOut")->mutable_data<T>();
  T* saved_mean = ctx.Output("SavedMean")->mutable_data<T>();
  T* saved_inverse = ctx.Output("SavedVariance")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* bias = ctx.Input("Bias").data<T>();
  const T* mean = ctx.Input("Mean").data<T>();
  const T* variance = ctx.Input("Variance").data<T>();

  if (!running && s.count == 1) {
    ParallelCopy(x, x_tensor.numel(), y);
    std::copy_n(mean, s.channels, mean_out);
    std::copy_n(variance, s.channels, variance_out);
    std::fill_n(saved_mean, s.channels, T(0));
    std::fill_n(saved_inverse, s.channels, T(0));
    return;
  }
  // Writes what is known of channel c and gives what its elements are multiplied by.
  const auto finish = [=](int64_t c, double channel_mean, double channel_variance) {
    const auto m = static_cast<T>(channel_mean);
    const auto inverse = static_cast<T>(1 / std::sqrt(channel_variance + epsilon));
    mean_out[c] = running ? mean[c] : momentum * mean[c] + (1 - momentum) * m;
    variance_out[c] =
        running ? variance[c] : momentum * variance[c] + (1 - momentum) * static_cast<T>(channel_variance);
    saved_mean[c] = m;
    saved_inverse[c] = inverse;
    return inverse * scale[c];
  };
  if (s.HasFewPixels()) {
    Tensor moments_memory;
    Tensor columns_memory;
    double* channel_means = Scratch<double>(&moments_memory, 2 * s.channels);
    double* channel_variances = channel_means + s.channels;
    T* means = Scratch<T>(&columns_memory, 3 * s.columns());
    T* factors = means + s.columns();
    T* biases = factors + s.columns();
    if (running) {
      std::copy_n(mean, s.channels, channel_means);
      std::copy_n(variance, s.channels, channel_variances);
    } else {
      s.Moments(x, channel_means, channel_variances);
    }
    s.FillColumns([=](int64_t c) { return static_cast<T>(channel_means[c]); }, means);
    s.FillColumns([=](int64_t c) { return finish(c, channel_means[c], channel_variances[c]); }, factors);
    s.FillColumns([bias](int64_t c) { return bias[c]; }, biases);
    s.FillElements([=](int64_t i, int64_t j) { return (x[i] - means[j]) * factors[j] + biases[j]; }, y);
    return;
  }
  s.ForEachChannel([=, &s](int64_t c) {
    double channel_mean = static_cast<double>(mean[c]);
    double channel_variance = static_cast<double>(variance[c]);
    if (!running) {
      // The mean is taken off first: the difference of large squares would cancel.
      const auto count = static_cast<double>(s.count);
      channel_mean = s.SumOfChannel<T>(c, [x](int64_t i) { return x[i]; }) / count;
      channel_variance = s.SumOfChannel<T>(c, [x, m = static_cast<T>(channel_mean)](int64_t i) {
        return (x[i] - m) * (x[i] - m);
      }) / count;
    }
    const auto m = static_cast<T>(channel_mean);
    const T factor = finish(c, channel_mean, channel_variance);
    s.ForEachRow(c, [=, &s, b = bias[c]](int64_t row) {
      for (int64_t i = row; i < row + s.pixels; ++i) {
        y[i] = (x[i] - m) * factor + b;
      }
    });
  });
}

// With h = (x − mean) · inverse: dbias = Σ dy, dscale = Σ dy · h, and, as mean and variance depend on x too (unless
// they are the running ones), dx = scale · inverse · (dy − dbias / count − h · dscale / count).
template <typename T>
void BatchNormGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const Channels s(ctx.attrs(), x_tensor.dims());
  const bool running = UsesRunningStatistics(ctx.attrs());
  LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD");
  LoDTensor* scale_grad = ctx.OutputOrNull("Scale@GRAD");
  LoDTensor* bias_grad = ctx.OutputOrNull("Bias@GRAD");
  T* dx = x_grad == nullptr ? nullptr : x_grad->mutable_data<T>();
  T* dscale = scale_grad == nullptr ? nullptr : scale_grad->mutable_data<T>();
  T* dbias = bias_grad == nullptr ? nullptr : bias_grad->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* saved_mean = ctx.Input("SavedMean").data<T>();
  const T* saved_inverse = ctx.Input("SavedVariance").data<T>();

  if (!running && s.count == 1) {
    ParallelCopy(dy, dx == nullptr ? 0 : x_tensor.numel(), dx);
    std::fill_n(dscale, dscale == nullptr ? 0 : s.channels, T(0));
    std::fill_n(dbias, dbias == nullptr ? 0 : s.channels, T(0));
    return;
  }
  // Writes the gradients of Scale and Bias for channel c, whose sums are Σ dy and Σ dy · h.
  const auto finish = [=](int64_t c, double sum, double dot) {
    if (dbias != nullptr) {
      dbias[c] = static_cast<T>(sum);
    }
    if (dscale != nullptr) {
      dscale[c] = static_cast<T>(dot);
    }
  };
  const auto share = [count = static_cast<T>(s.count), running](double sum) {
    return running ? T(0) : static_cast<T>(sum) / count;
  };
  if (s.HasFewPixels()) {
    Tensor sums_memory;
    Tensor columns_memory;
    double* sums = Scratch<double>(&sums_memory, 2 * s.channels);
    double* dots = sums + s.channels;
    T* means = Scratch<T>(&columns_memory, 5 * s.columns());
    T* inverses = means + s.columns();
    s.FillColumns([=](int64_t c) { return saved_mean[c]; }, means);
    s.FillColumns([=](int64_t c) { return saved_inverse[c]; }, inverses);
    s.SumColumns([=](int64_t i, int64_t) { return dy[i]; }, sums);
    s.SumColumns([=](int64_t i, int64_t j) { return dy[i] * ((x[i] - means[j]) * inverses[j]); }, dots);
    for (int64_t c = 0; c < s.channels; ++c) {
      finish(c, sums[c], dots[c]);
    }
    if (dx != nullptr) {
      T* factors = inverses + s.columns();
      T* sum_shares = factors + s.columns();
      T* dot_shares = sum_shares + s.columns();
      s.FillColumns([=](int64_t c) { return scale[c] * saved_inverse[c]; }, factors);
      s.FillColumns([=](int64_t c) { return share(sums[c]); }, sum_shares);
      s.FillColumns([=](int64_t c) { return share(dots[c]); }, dot_shares);
      s.FillElements(
          [=](int64_t i, int64_t j) {
            return factors[j] * (dy[i] - sum_shares[j] - (x[i] - means[j]) * inverses[j] * dot_shares[j]);
          },
          dx);
    }
    return;
  }
  s.ForEachChannel([=, &s](int64_t c) {
    const T mean = saved_mean[c];
    const T inverse = saved_inverse[c];
    const double sum = s.SumOfChannel<T>(c, [=](int64_t i) { return dy[i]; });
    const double dot = s.SumOfChannel<T>(c, [=](int64_t i) { return dy[i] * ((x[i] - mean) * inverse); });
    finish(c, sum, dot);
    if (dx != nullptr) {
      const T sum_share = share(sum);
      const T dot_share = share(dot);
      s.ForEachRow(c, [=, &s, factor = scale[c] * inverse](int64_t row) {
        for (int64_t i = row; i < row + s.pixels; ++i) {
          dx[i] = factor * (dy[i] - sum_share - (x[i] - mean) * inverse * dot_share);
        }
      });
    }
  });
}

void EnforceChannels(const InferShapeContext& ctx, HashedNames slots) {
  EnforceRankAtLeast(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  for (const HashedName slot : slots) {
    EnforceDims(ctx, slot, {HasChannelsLast(ctx.attrs()) ? x.back() : x[1]});
    EnforceSameType(ctx, slot, "X");
  }
}

void InferBatchNorm(InferShapeContext& ctx) {
  EnforceChannels(ctx, {"Scale", "Bias", "Mean", "Variance"});
  const DDim x = ctx.InputDim("X");
  bool has_elements = true;
  for (size_t d = 0; d < x.size(); ++d) {
    has_elements = has_elements && (x[d] != 0 || d == (HasChannelsLast(ctx.attrs()) ? x.size() - 1 : 1));
  }
  HR_ENFORCE(UsesRunningStatistics(ctx.attrs()) || has_elements, InvalidArgument,
             "input X: expected at least one element for each channel in training, got dims ", ToString(x));
  if (ctx.HasInput("MomentumTensor")) EnforceScalar(ctx, "MomentumTensor");
  const DDim channels = ctx.InputDim("Scale");
  ctx.ShareAll("X", "Y");
  for (const HashedName slot : HashedNames{"MeanOut", "VarianceOut", "SavedMean", "SavedVariance"}) {
    SetOutput(ctx, slot, channels, ctx.InputType("X"));
  }
}

OpRegistrar&& BatchNormAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<bool>("is_test", "whether the running statistics are used and left as they are", false)
      .Attr<bool>("use_global_stats", "the same, in training", false)
      .Attr<double>("momentum", "how much of the running statistics stays", 0.9)
      .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
      .With(TwoLayoutsAttr, "data_layout");
}

}  // namespace

HEADRACE_REGISTER_OP(batch_norm)
    .Comment(
        "Scale * (X - mean) / sqrt(variance + epsilon) + Bias, by channel; mean and variance (with divisor N) are "
        "those of the batch. A batch with one element for each channel stays as it is, and so do the running "
        "statistics.")
    .Input("X", "[N, C, ...], or [N, ..., C]")
    .Input("Scale", "[C]")
    .Input("Bias", "[C]")
    .Input("Mean", "[C], the running mean")
    .Input("Variance", "[C], the running variance")
    .Input("MomentumTensor", "float32 or float64 [1]: momentum, instead of the attribute", kDispensable)
    .Output("Y", "dims of X")
    .Output("MeanOut", "[C], momentum * Mean + (1 - momentum) * mean; may be Mean")
    .InPlace("MeanOut", "Mean")
    .Output("VarianceOut", "[C], likewise; may be Variance")
    .InPlace("VarianceOut", "Variance")
    .Output("SavedMean", "[C], the mean that was used")
    .Output("SavedVariance", "[C], 1 / sqrt(variance + epsilon), as in Paddle")
    .With(BatchNormAttrs)
    .InferShape(InferBatchNorm)
    .Kernel<float>(BatchNormKernel<float>)
    .Kernel<double>(BatchNormKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Scale"},
                               .outputs = {"SavedMean", "SavedVariance"},
                               .no_gradient = {"Mean", "Variance", "MomentumTensor"}}));

HEADRACE_REGISTER_OP(batch_norm_grad)
    .Comment("Gradient of batch_norm.")
    .Input("X", "as in the operator")
    .Input("Scale", "as in the operator")
    .Input("SavedMean", "as in the operator")
    .Input("SavedVariance", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Input("MeanOut@GRAD", "not used", kDispensable)
    .Input("VarianceOut@GRAD", "not used", kDispensable)
    .Input("SavedMean@GRAD", "not used", kDispensable)
    .Input("SavedVariance@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Scale@GRAD", "[C]", kDispensable)
    .Output("Bias@GRAD", "[C]", kDispensable)
    .With(BatchNormAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceChannels(ctx, {"Scale", "SavedMean", "SavedVariance"});
      EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X", "Scale"});
      SetOutput(ctx, "Bias@GRAD", ctx.InputDim("Scale"), ctx.InputType("X"));
    })
    .Kernel<float>(BatchNormGradKernel<float>)
    .Kernel<double>(BatchNormGradKernel<double>);

}  // namespace headrace::ops
