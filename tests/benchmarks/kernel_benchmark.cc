// Kernels that are written by hand against the same work by Eigen's expressions, and products against OpenBLAS's, if it
// is installed: on one thread, in turns, medians of the rounds.
//
//   build/release/tests/benchmarks/kernel_benchmark [rounds]
//
// prints, for each kernel, its time and those of the others divided by it: above 1, ours is faster.
#include <dlfcn.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unsupported/Eigen/SpecialFunctions>
#include <utility>
#include <vector>

#include "framework/eigen.h"
#include "framework/executor.h"

namespace {

using headrace::EigenArray;
using headrace::EigenMatrix;
using headrace::LoDTensor;
using headrace::MutableEigenArray;
using headrace::MutableEigenMatrix;

using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                       const float* b, int ldb, float beta, float* c, int ldc);

// cblas_sgemm, on one thread; nullptr: OpenBLAS is not installed.
Sgemm OpenBlas() {
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return nullptr;
  }
  if (auto* set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"))) {
    set_threads(1);
  }
  return reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
}

LoDTensor Numbers(headrace::DDim dims) {
  LoDTensor tensor;
  tensor.Resize(std::move(dims));
  MutableEigenArray<float>(&tensor) = Eigen::ArrayXf::Random(tensor.numel());
  return tensor;
}

// Runs an operator with inputs, as a program of its own.
std::function<void()> Ours(const std::string& type, const std::map<std::string, LoDTensor>& inputs,
                           const headrace::AttributeMap& attrs = {}) {
  struct Run {
    headrace::ProgramDesc program;
    headrace::Executor executor{headrace::Place(), 1};
    headrace::Scope scope;
    std::unique_ptr<headrace::PreparedProgram> prepared;
    std::vector<LoDTensor> fetched;
  };
  auto run = std::make_shared<Run>();
  headrace::OpDesc op{type, {}, {{"Out", {"Out"}}}, attrs};
  headrace::BlockDesc& block = run->program.block(0);
  for (const auto& [slot, tensor] : inputs) {
    block.Var(slot).tensor.dims = tensor.dims();
    op.inputs[slot] = {slot};
  }
  block.Var("Out");
  block.AppendOp(op);
  run->prepared = run->executor.Prepare(run->program, {"Out"});
  return [run, inputs] { run->executor.Run(*run->prepared, &run->scope, inputs, &run->fetched); };
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Microseconds of a call; as many calls as take 5 ms.
double Time(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  int calls = 0;
  const auto begin = Clock::now();
  std::chrono::duration<double, std::micro> time{};
  do {
    call();
    ++calls;
    time = Clock::now() - begin;
  } while (time.count() < 5000);
  return time.count() / calls;
}

void Compare(const std::string& name, int rounds, const std::function<void()>& ours,
             const std::map<std::string, std::function<void()>>& others) {
  std::vector<double> times;
  std::map<std::string, std::vector<double>> ratios;
  for (int round = 0; round < rounds; ++round) {
    times.push_back(Time(ours));
    for (const auto& [other, call] : others) {
      ratios[other].push_back(Time(call) / times.back());
    }
  }
  std::printf("%-28s %9.1f us", name.c_str(), Median(times));
  for (const auto& [other, values] : ratios) {
    std::printf("   %s %5.2f", other.c_str(), Median(values));
  }
  std::printf("\n");
}

void CompareProducts(int rounds) {
  const Sgemm sgemm = OpenBlas();
  for (const auto& [m, n, k] : std::vector<std::array<int, 3>>{
           {1024, 1024, 1024}, {512, 512, 512}, {256, 256, 256}, {64, 64, 64}, {8, 512, 512}, {512, 64, 784}}) {
    const LoDTensor a = Numbers({m, k});
    const LoDTensor b = Numbers({k, n});
    LoDTensor c;
    c.Resize({m, n});
    auto out = MutableEigenMatrix<float>(&c);
    std::map<std::string, std::function<void()>> others;
    others["Eigen"] = [&] { out.noalias() = EigenMatrix<float>(a) * EigenMatrix<float>(b); };
    if (sgemm != nullptr) {
      others["OpenBLAS"] = [&, m = m, n = n, k = k] {
        sgemm(101, 111, 111, m, n, k, 1, a.data<float>(), k, b.data<float>(), n, 0, out.data(), n);
      };
    }
    Compare(headrace::StrCat("matmul ", m, " x ", k, " x ", n), rounds, Ours("matmul", {{"X", a}, {"Y", b}}, {}),
            others);
  }
}

void CompareElements(int rounds) {
  const LoDTensor x = Numbers({1 << 20});
  const LoDTensor y = Numbers({1 << 20});
  LoDTensor to;
  to.Resize(x.dims());
  auto out = MutableEigenArray<float>(&to);
  const auto a = EigenArray<float>(x);
  const auto b = EigenArray<float>(y);
  const auto unary = [&](const char* type, const std::function<void()>& eigen) {
    Compare(headrace::StrCat(type, " 1 Mi"), rounds, Ours(type, {{"X", x}}), {{"Eigen", eigen}});
  };
  unary("relu", [&] { out = a.max(0.0F); });
  unary("exp", [&] { out = a.exp(); });
  unary("tanh", [&] { out = a.tanh(); });
  unary("sigmoid", [&] { out = 1 / (1 + (-a).exp()); });
  unary("softplus", [&] { out = a.max(0.0F) + (-a.abs()).exp().log1p(); });
  unary("erf", [&] { out = a.erf(); });
  Compare("elementwise_add 1 Mi", rounds, Ours("elementwise_add", {{"X", x}, {"Y", y}}),
          {{"Eigen", [&] { out = a + b; }}});
}

void CompareMatrices(int rounds) {
  const LoDTensor x = Numbers({1024, 1000});
  const auto a = EigenMatrix<float>(x);
  LoDTensor to;
  to.Resize(x.dims());
  auto out = MutableEigenMatrix<float>(&to);
  Eigen::VectorXf sums;
  Eigen::RowVectorXf column_sums;
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> turned(1000, 1024);
  const auto sum = [&](int32_t dim) { return Ours("reduce_sum", {{"X", x}}, {{"dim", std::vector<int32_t>{dim}}}); };
  Compare("reduce_sum 1024 x 1000, 0", rounds, sum(0), {{"Eigen", [&] { column_sums = a.colwise().sum(); }}});
  Compare("reduce_sum 1024 x 1000, 1", rounds, sum(1), {{"Eigen", [&] { sums = a.rowwise().sum(); }}});
  Compare("softmax 1024 x 1000", rounds, Ours("softmax", {{"X", x}}, {}),
          {{"Eigen", [&] {
              out.array() = (a.colwise() - a.rowwise().maxCoeff()).array().exp();
              sums = out.rowwise().sum();
              out.array().colwise() /= sums.array();
            }}});
  Compare("transpose 1024 x 1000", rounds, Ours("transpose", {{"X", x}}, {{"axis", std::vector<int32_t>{1, 0}}}),
          {{"Eigen", [&] { turned = a.transpose(); }}});
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: %s [rounds]\n", argv[0]);
    return 1;
  }
  CompareProducts(rounds);
  CompareElements(rounds);
  CompareMatrices(rounds);
  return 0;
}
