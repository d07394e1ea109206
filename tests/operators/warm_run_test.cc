// What a prepared program costs once it is warm: nothing from the heap, no look-up of a name, and little more memory
// than it needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "framework/executor.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "tests/operators/count_allocations.h"
#include "tests/operators/count_text.h"
#include "tests/operators/net.h"

namespace headrace {
namespace {

using test::AllocationCount;
using test::Ints;
using test::Net;
using test::TextCount;

using Feeds = std::map<std::string, LoDTensor>;

LoDTensor Pixels(const DDim& dims) {
  LoDTensor tensor;
  float* to = tensor.Resize(dims).mutable_data<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    to[i] = static_cast<float>(i * 37 % 101) / 101;
  }
  return tensor;
}

LoDTensor Ids(const DDim& dims, int64_t classes) {
  LoDTensor tensor;
  int64_t* to = tensor.Resize(dims).mutable_data<int64_t>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    to[i] = i * 7 % classes;
  }
  return tensor;
}

// Sequences of these lengths.
LoDTensor Words(const std::vector<size_t>& lengths, int64_t words) {
  LoD lod{{0}};
  for (const size_t length : lengths) {
    lod[0].push_back(lod[0].back() + length);
  }
  LoDTensor tensor = Ids({static_cast<int64_t>(lod[0].back()), 1}, words);
  tensor.set_lod(std::move(lod));
  return tensor;
}

std::string MeanLoss(Net* net, const std::string& logits) {
  return net->Add(
      "mean",
      {{"X", net->Add("softmax_with_cross_entropy", {{"Logits", logits}, {"Label", "label"}}, {"Loss", "Softmax"})}},
      {"Out"});
}

std::string CrossEntropy(Net* net, const std::string& logits) {
  const std::string probabilities = net->Add("softmax", {{"X", logits}}, {"Out"});
  return net->Add("mean", {{"X", net->Add("cross_entropy", {{"X", probabilities}, {"Label", "label"}}, {"Y"})}},
                  {"Out"});
}

std::string BuildLeNet(Net* net) {
  net->Data("image", {-1, 1, 28, 28});
  net->Data("label", {-1, 1}, DataType::kInt64);
  const std::string features = net->Pool(net->Convolution(net->Pool(net->Convolution("image", 1, 20, 5)), 20, 50, 5));
  const std::string flat = net->Add("reshape2", {{"X", features}}, {"Out", "XShape"}, {{"shape", Ints{0, -1}}});
  const std::string hidden = net->Add("relu", {{"X", net->Connected(flat, 50 * 25, 500)}}, {"Out"});
  const std::string logits = net->Connected(hidden, 500, 10);
  const std::string top = net->Add("top_k", {{"X", logits}}, {"Out", "Indices"});
  net->Add("accuracy", {{"Out", top}, {"Indices", top.substr(0, top.size() - 3) + "Indices"}, {"Label", "label"}},
           {"Accuracy", "Correct", "Total"});
  return CrossEntropy(net, logits);
}

std::string BuildMlp(Net* net) {
  net->Data("image", {-1, 784});
  net->Data("label", {-1, 1}, DataType::kInt64);
  std::string x = "image";
  int64_t width = 784;
  for (const int64_t next : {512, 512}) {
    x = net->Add("relu", {{"X", net->Connected(x, width, next)}}, {"Out"});
    width = next;
  }
  return MeanLoss(net, net->Connected(x, width, 10));
}

std::string BuildLstm(Net* net, int64_t width, bool is_sparse) {
  net->Data("words", {-1, 1}, DataType::kInt64, 1);
  net->Data("label", {-1, 1}, DataType::kInt64);
  const std::string table = net->Parameter({1000, width}, 0.5f);
  const std::string embedded =
      net->Add("lookup_table", {{"W", table}, {"Ids", "words"}}, {"Out"}, {{"is_sparse", is_sparse}});
  const std::string input = net->Connected(embedded, width, 4 * width);
  const std::string hidden = net->Add("lstm",
                                      {{"Input", input},
                                       {"Weight", net->Parameter({width, 4 * width}, 0.1f)},
                                       {"Bias", net->Parameter({1, 7 * width}, 0.1f)}},
                                      {"Hidden", "Cell", "BatchGate", "BatchCellPreAct"});
  const std::string pooled =
      net->Add("sequence_pool", {{"X", hidden}}, {"Out", "MaxIndex"}, {{"pooltype", std::string("MAX")}});
  return MeanLoss(net, net->Connected(pooled, width, 2));
}

void AppendCounter(Net* net, double n) {
  BlockDesc* root = &net->main().block(0);
  for (const auto& [name, value] : {std::pair<std::string, double>{"i", 0}, {"n", n}}) {
    root->Append(
        "fill_constant", {}, {{"Out", {name}}},
        {{"shape", std::vector<int64_t>{1}}, {"dtype", static_cast<int32_t>(DataType::kInt64)}, {"value", value}});
  }
  root->Append("less_than", {{"X", {"i"}}, {"Y", {"n"}}}, {{"Out", {"cond"}}});
}

// h = x; while (i < steps) { h = tanh(h w); ++i; }
std::string BuildLoop(Net* net, double steps = 5) {
  net->Data("x", {-1, 8});
  const std::string weights = net->Parameter({8, 8}, 0.5f);
  AppendCounter(net, steps);
  net->main().block(0).Append("assign", {{"X", {"x"}}}, {{"Out", {"h"}}});
  BlockDesc* body = &net->main().AppendBlock(0);
  body->Append("mul", {{"X", {"h"}}, {"Y", {weights}}}, {{"Out", {"product"}}});
  body->Append("tanh", {{"X", {"product"}}}, {{"Out", {"h"}}});
  body->Append("increment", {{"X", {"i"}}}, {{"Out", {"i"}}}, {{"step", 1.0}});
  body->Append("less_than", {{"X", {"i"}}, {"Y", {"n"}}}, {{"Out", {"cond"}}});
  net->main().block(0).Var("steps").kind = VarKind::kStepScopes;
  net->main().block(0).Append("while", {{"X", {"i", "n", "h", weights}}, {"Condition", {"cond"}}},
                              {{"Out", {"h", "i", "cond"}}, {"StepScopes", {"steps"}}}, {{"sub_block", BlockRef{1}}});
  return net->Add("mean", {{"X", "h"}}, {"Out"});
}

// h = x; if (0 < 1) h = tanh(h w);
std::string BuildCondition(Net* net) {
  net->Data("x", {-1, 8});
  const std::string weights = net->Parameter({8, 8}, 0.5f);
  AppendCounter(net, 1);
  net->main().block(0).Append("assign", {{"X", {"x"}}}, {{"Out", {"h"}}});
  BlockDesc* body = &net->main().AppendBlock(0);
  body->Append("mul", {{"X", {"h"}}, {"Y", {weights}}}, {{"Out", {"product"}}});
  body->Append("tanh", {{"X", {"product"}}}, {{"Out", {"h"}}});
  net->main().block(0).Var("steps").kind = VarKind::kStepScopes;
  net->main().block(0).Append("conditional_block", {{"Input", {"h", weights}}, {"Cond", {"cond"}}},
                              {{"Out", {"h"}}, {"Scope", {"steps"}}},
                              {{"sub_block", BlockRef{1}}, {"is_scalar_condition", true}});
  return net->Add("mean", {{"X", "h"}}, {"Out"});
}

// For each step: h = tanh(x w + h).
std::string BuildRecurrent(Net* net) {
  net->Data("x", {5, -1, 8});
  net->Data("start", {-1, 8});
  const std::string weights = net->Parameter({8, 8}, 0.5f);
  BlockDesc* body = &net->main().AppendBlock(0);
  for (const char* name : {"x", "before", "product", "sum", "h"}) {
    body->Var(name).tensor.dims = {-1, 8};
  }
  body->Append("mul", {{"X", {"x"}}, {"Y", {weights}}}, {{"Out", {"product"}}});
  body->Append("elementwise_add", {{"X", {"product"}}, {"Y", {"before"}}}, {{"Out", {"sum"}}});
  body->Append("tanh", {{"X", {"sum"}}}, {{"Out", {"h"}}});
  net->main().block(0).Var("steps").kind = VarKind::kStepScopes;
  net->main().block(0).Append("recurrent",
                              {{"inputs", {"x"}}, {"initial_states", {"start"}}, {"parameters", {weights}}},
                              {{"outputs", {"h"}}, {"step_scopes", {"steps"}}},
                              {{"sub_block", BlockRef{1}},
                               {"ex_states", std::vector<std::string>{"before"}},
                               {"states", std::vector<std::string>{"h"}}});
  return net->Add("mean", {{"X", "h"}}, {"Out"});
}

std::string BuildChannelsLast(Net* net) {
  net->Data("image", {-1, 12, 10, 3});
  net->Data("label", {-1, 1}, DataType::kInt64);
  const std::pair<std::string, Attribute> format = {"data_format", std::string("NHWC")};
  const std::pair<std::string, Attribute> layout = {"data_layout", std::string("NHWC")};
  std::string x = net->Add("conv2d", {{"Input", "image"}, {"Filter", net->Parameter({8, 3, 3, 3}, 0.5f)}}, {"Output"},
                           {{"paddings", Ints{1, 1}}, format});
  x = net->Add("group_norm", {{"X", x}}, {"Y", "Mean", "Variance"}, {{"groups", int32_t{2}}, layout});
  for (const char* type : {"max", "avg"}) {
    x = net->Add("pool2d", {{"X", x}}, {"Out"},
                 {{"ksize", Ints{2, 2}}, {"strides", Ints{2, 1}}, {"pooling_type", std::string(type)}, format});
  }
  x = net->Add("conv2d_transpose", {{"Input", x}, {"Filter", net->Parameter({8, 6, 3, 3}, 0.5f)}}, {"Output"},
               {format});
  x = net->Add("bilinear_interp", {{"X", x}}, {"Out"}, {{"out_h", int32_t{4}}, {"out_w", int32_t{5}}, layout});
  const std::string flat = net->Add("reshape2", {{"X", x}}, {"Out", "XShape"}, {{"shape", Ints{0, -1}}});
  return MeanLoss(net, net->Connected(flat, 6 * 20, 10));
}

Feeds ImageFeeds(const DDim& image) { return {{"image", Pixels(image)}, {"label", Ids({image[0], 1}, 10)}}; }

Feeds WordFeeds(const std::vector<size_t>& lengths) {
  return {{"words", Words(lengths, 1000)}, {"label", Ids({static_cast<int64_t>(lengths.size()), 1}, 2)}};
}

// What runs after two rounds over `feeds` take from the heap in one more round, by all threads. They must not look up
// anything by name.
size_t AllocationsWhenWarm(const ProgramDesc& startup, const ProgramDesc& main, const std::vector<std::string>& fetches,
                           const std::vector<Feeds>& feeds, int threads) {
  Executor executor(CPUPlace(), threads);
  Scope scope;
  executor.Run(startup, &scope);
  const auto prepared = executor.Prepare(main, fetches);
  std::vector<LoDTensor> fetched;
  for (int i = 0; i < 2; ++i) {
    for (const Feeds& feed : feeds) {
      executor.Run(*prepared, &scope, feed, &fetched);
    }
  }
  // The names of the feeds are the caller's; Run sees whether they are those of the run before.
  const size_t fed = std::accumulate(feeds.begin(), feeds.end(), size_t{0},
                                     [](size_t sum, const Feeds& feed) { return sum + feed.size(); });
  size_t allocations = 0;
  size_t compared = 0;
  {
    const AllocationCount allocation_count;
    const TextCount text_count(fed);
    for (const Feeds& feed : feeds) {
      executor.Run(*prepared, &scope, feed, &fetched);
    }
    allocations = allocation_count.count();
    compared = text_count.count();
  }
  EXPECT_EQ(compared, fed) << "strings that were compared or hashed";
  return allocations;
}

size_t AllocationsWhenWarm(const ProgramDesc& startup, const ProgramDesc& main, const std::vector<std::string>& fetches,
                           const std::vector<Feeds>& feeds) {
  return AllocationsWhenWarm(startup, main, fetches, feeds, 1) + AllocationsWhenWarm(startup, main, fetches, feeds, 2);
}

size_t AllocationsWhenWarm(const Net& net, const std::vector<std::string>& fetches, const std::vector<Feeds>& feeds) {
  return AllocationsWhenWarm(net.startup(), net.main(), fetches, feeds);
}

// The program `name` of the folder programs/.
std::unique_ptr<ProgramDesc> Load(const std::string& name) {
  std::ifstream file(TEST_PROGRAMS "/" + name + ".program", std::ios::binary);
  return ProgramDesc::Parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

size_t AllocationsWhenWarm(const std::string& name, const std::string& fetch, const std::vector<Feeds>& feeds) {
  return AllocationsWhenWarm(*Load(name + ".startup"), *Load(name + ".main"), {fetch}, feeds);
}

TEST(AllocationCount, SeesWhatOtherThreadsAllocate) {
  ThreadPool pool(2);
  const ScopedThreadPool scoped(&pool);
  const auto blocks = [](const std::function<void()>& of_other_threads) {
    // Each of the two waits for the other.
    std::atomic<int> met{0};
    ParallelFor(2, 1, [&, caller = std::this_thread::get_id()](int64_t, int64_t) {
      for (++met; met < 2;) {
      }
      if (std::this_thread::get_id() != caller) {
        of_other_threads();
      }
    });
  };
  blocks([] {});  // starts the threads
  const AllocationCount count;
  blocks([] { delete new int; });
  EXPECT_EQ(count.count(), 1u);
}

TEST(AllocationCount, SeesWhatIsAllocated) {
  const AllocationCount count;
  EXPECT_EQ(count.count(), 0u);
  delete new int;
  const std::vector<float> some(10);
  ::operator delete(::operator new(64, std::align_val_t{64}), std::align_val_t{64});
  EXPECT_EQ(count.count(), 3u);
}

TEST(TextCount, SeesWhatIsComparedAndHashed) {
  const std::map<std::string, int> sorted{{"a name", 1}};
  const std::unordered_map<std::string, int> hashed{{"another name", 2}};
  const std::vector<size_t> numbers{0, 3, 5};
  const std::vector<size_t> same = numbers;
  const TextCount count;
  EXPECT_TRUE(numbers == same);
  EXPECT_EQ(count.count(), 0u);
  EXPECT_NE(sorted.find("a name"), sorted.end());
  EXPECT_GT(count.count(), 0u);
  const size_t compared = count.count();
  EXPECT_EQ(hashed.size(), 1u);
  EXPECT_GT(std::hash<std::string>()("another name"), 0u);
  EXPECT_GT(count.count(), compared);
}

class WarmTraining : public testing::TestWithParam<const char*> {};

TEST_P(WarmTraining, OfLeNetAllocatesNothing) {
  Net net;
  const std::string loss = BuildLeNet(&net);
  net.Minimize(loss, GetParam(), 0.01f);
  EXPECT_EQ(AllocationsWhenWarm(net, {loss}, {ImageFeeds({64, 1, 28, 28})}), 0u);
}

TEST_P(WarmTraining, OfAnMlpAllocatesNothing) {
  Net net;
  const std::string loss = BuildMlp(&net);
  net.Minimize(loss, GetParam(), 0.01f);
  EXPECT_EQ(AllocationsWhenWarm(net, {loss}, {ImageFeeds({128, 784})}), 0u);
}

TEST_P(WarmTraining, OfAnLstmAllocatesNothing) {
  for (const bool is_sparse : {false, true}) {
    Net net;
    const std::string loss = BuildLstm(&net, 64, is_sparse);
    net.Minimize(loss, GetParam(), 0.01f);
    EXPECT_EQ(AllocationsWhenWarm(net, {loss}, {WordFeeds({7, 12, 30, 1, 18})}), 0u);
  }
}

// The largest batch comes first.
TEST_P(WarmTraining, OnBatchesOfManySizesAllocatesNothing) {
  for (const bool is_sparse : {false, true}) {
    Net net;
    const std::string loss = BuildLstm(&net, 64, is_sparse);
    net.Minimize(loss, GetParam(), 0.01f);
    EXPECT_EQ(AllocationsWhenWarm(net, {loss},
                                  {WordFeeds({17, 30, 30, 30, 18}), WordFeeds({1, 2}), WordFeeds({3, 28, 16, 30}),
                                   WordFeeds({30, 9, 9, 9, 9}), WordFeeds({1})}),
              0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, WarmTraining, testing::Values("sgd", "momentum", "adam"),
                         [](const auto& c) { return c.param; });

// Of a net that only runs, and of one that trains.
void ExpectNoAllocations(const std::function<std::string(Net*)>& build, const std::vector<Feeds>& feeds) {
  for (const bool trains : {false, true}) {
    Net net;
    const std::string loss = build(&net);
    if (trains) {
      net.Minimize(loss, "sgd", 0.01f);
    }
    EXPECT_EQ(AllocationsWhenWarm(net, {loss}, feeds), 0u) << trains;
  }
}

TEST(WarmRun, OfALoopAllocatesNothing) {
  ExpectNoAllocations([](Net* net) { return BuildLoop(net); }, {{{"x", Pixels({4, 8})}}, {{"x", Pixels({2, 8})}}});
}

TEST(WarmRun, OfARecurrentBlockAllocatesNothing) {
  ExpectNoAllocations(BuildRecurrent, {{{"x", Pixels({5, 4, 8})}, {"start", Pixels({4, 8})}}});
}

TEST(WarmRun, OfAConditionalBlockAllocatesNothing) { ExpectNoAllocations(BuildCondition, {{{"x", Pixels({4, 8})}}}); }

TEST(WarmRun, OfImagesWithChannelsLastAllocatesNothing) {
  ExpectNoAllocations(BuildChannelsLast, {ImageFeeds({8, 12, 10, 3}), ImageFeeds({3, 12, 10, 3})});
}

TEST(WarmRun, OfADynamicRnnAllocatesNothing) {
  const auto feeds = [](const std::vector<size_t>& lengths) {
    return Feeds{{"words", Words(lengths, 20)}, {"label", Ids({static_cast<int64_t>(lengths.size()), 1}, 3)}};
  };
  EXPECT_EQ(AllocationsWhenWarm("dynamic_rnn", "mean_0.tmp_0", {feeds({3, 7, 7, 5, 1}), feeds({2, 6}), feeds({4})}),
            0u);
}

TEST(WarmRun, OfAStaticRnnAllocatesNothing) {
  EXPECT_EQ(AllocationsWhenWarm("static_rnn", "mean_0.tmp_0", {{{"x", Pixels({4, 3, 6})}}}), 0u);
}

TEST(WarmRun, OfABeamSearchAllocatesNothing) {
  LoDTensor ids = Ids({2, 1}, 20);
  LoDTensor scores = Pixels({2, 1});
  ids.set_lod({{0, 1, 2}, {0, 1, 2}});
  scores.set_lod(ids.lod());
  EXPECT_EQ(AllocationsWhenWarm("beam_search", "beam_search_decode_0.tmp_0",
                                {{{"first_ids", ids}, {"first_scores", scores}}}),
            0u);
}

TEST(WarmRun, OfCountedRandomOperatorsAllocatesNothing) {
  Net net;
  const std::string x = net.Data("x", {-1, 8});
  const std::string counter = net.Data("run", {1}, DataType::kInt64);
  const std::vector<int64_t> row = {-1, 8};
  std::string hidden = net.Connected(x, 8, 8);
  for (const char* type : {"uniform_random_batch_size_like", "gaussian_random_batch_size_like"}) {
    const std::string noise = net.Add(type, {{"Input", x}, {"Seed", counter}}, {"Out"}, {{"shape", row}, {"seed", 3}});
    hidden = net.Add("elementwise_mul", {{"X", hidden}, {"Y", noise}}, {"Out"});
  }
  hidden = net.Add("dropout", {{"X", hidden}, {"Seed", counter}}, {"Out", "Mask"}, {{"seed", 4}});
  const std::string probabilities = net.Add("softmax", {{"X", hidden}}, {"Out"});
  const std::string drawn = net.Add("sampling_id", {{"X", probabilities}, {"Seed", counter}}, {"Out"}, {{"seed", 5}});
  const std::string loss = net.Add("mean", {{"X", hidden}}, {"Out"});
  net.Minimize(loss, "dpsgd", 0.01f);
  BlockDesc& block = net.main().block(0);
  for (size_t i = 0; i < block.ops().size(); ++i) {
    if (block.ops()[i]->type == "dpsgd") {
      block.MutableOp(i).inputs["Seed"] = {counter};
    }
  }
  const LoDTensor run = Ids({1}, 9);
  EXPECT_EQ(AllocationsWhenWarm(net, {loss, drawn},
                                {{{"x", Pixels({4, 8})}, {"run", run}}, {{"x", Pixels({2, 8})}, {"run", run}}}),
            0u);
}

TEST(WarmRun, OfManyScalarOperatorsAllocatesNothing) {
  Net net;
  std::string x = net.Data("x", {1});
  for (int i = 0; i < 1000; ++i) {
    x = net.Add("scale", {{"X", x}}, {"Out"}, {{"scale", 1.001f}});
  }
  EXPECT_EQ(AllocationsWhenWarm(net, {x}, {{{"x", Pixels({1})}}}), 0u);
}

// Which inputs of an operator are read for more than their shapes.
std::set<std::string> ReadBy(const OpDesc& op) {
  std::set<std::string> names;
  for (const SlotInfo& slot : OpRegistry::Get(op.type).inputs) {
    if (!slot.shape_only) {
      names.insert(op.Input(slot.name).begin(), op.Input(slot.name).end());
    }
  }
  return names;
}

// How many bytes of the results of operator `i` can lie where inputs of it lie that nothing needs any more.
size_t WrittenInPlace(const OpDesc& op, size_t i, const std::map<std::string, std::pair<size_t, size_t>>& uses,
                      const std::map<std::string, size_t>& bytes) {
  size_t in_place = 0;
  std::set<std::string> left;
  for (const auto& [name, use] : uses) {
    if (use.first < i && use.second == i) {
      left.insert(name);
    }
  }
  for (const auto& [output, input] : OpRegistry::Get(op.type).in_place) {
    for (const std::string& result : op.Output(output)) {
      for (const std::string& from : op.Input(input)) {
        if (uses.contains(result) && uses.at(result).first == i && left.erase(from) != 0) {
          in_place += std::min(bytes.at(result), bytes.at(from));
          break;
        }
      }
    }
  }
  return in_place;
}

// The most bytes of temporaries that any operator of `program` needs at once: those that are alive, from the operator
// that writes them to the last that reads their elements, less what can be written in place. What is fetched lives to
// the end.
size_t MostAlive(const ProgramDesc& program, const std::map<std::string, size_t>& bytes,
                 const std::set<std::string>& fetched) {
  const auto& ops = program.block(0).ops();
  std::map<std::string, std::pair<size_t, size_t>> uses;
  for (size_t i = 0; i < ops.size(); ++i) {
    std::set<std::string> names = ReadBy(*ops[i]);
    for (const std::string& name : ops[i]->OutputNames()) {
      names.insert(name);
    }
    for (const std::string& name : names) {
      if (bytes.contains(name)) {
        uses.try_emplace(name, i, i).first->second.second = fetched.contains(name) ? ops.size() : i;
      }
    }
  }
  size_t most = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    size_t alive = 0;
    for (const auto& [name, use] : uses) {
      alive += use.first <= i && i <= use.second ? bytes.at(name) : 0;
    }
    most = std::max(most, alive - WrittenInPlace(*ops[i], i, uses, bytes));
  }
  return most;
}

// The memory that a warm prepared program holds, in use or not, for whatever purpose, over what its temporaries need at
// the least: the most that is alive at once, by MostAlive. Parameters and feeds are in neither.
double MemoryOverNeed(Net* net, const std::string& loss, const Feeds& feeds) {
  Executor executor;
  Scope scope;
  executor.Run(net->startup(), &scope);
  std::map<std::string, size_t> bytes;
  {
    std::vector<std::string> names;
    for (const VarDesc* var : net->main().block(0).LocalVars()) {
      if (!var->persistable && var->kind == VarKind::kLoDTensor && !feeds.contains(var->name)) {
        names.push_back(var->name);
      }
    }
    const auto all = executor.Prepare(net->main(), names);
    std::vector<LoDTensor> fetched;
    executor.Run(*all, &scope, feeds, &fetched);
    for (size_t i = 0; i < names.size(); ++i) {
      bytes[names[i]] = fetched[i].nbytes();
    }
  }
  const auto prepared = executor.Prepare(net->main(), {loss});
  std::vector<LoDTensor> fetched;
  for (int i = 0; i < 3; ++i) {
    executor.Run(*prepared, &scope, feeds, &fetched);
  }
  const size_t need = MostAlive(net->main(), bytes, {loss});
  const size_t all =
      std::accumulate(bytes.begin(), bytes.end(), size_t{0}, [](size_t sum, const auto& b) { return sum + b.second; });
  GTEST_LOG_(INFO) << "all temporaries " << all << " bytes, alive at once " << need << ", held " << prepared->memory();
  EXPECT_GT(prepared->memory(), need / 2);
  return static_cast<double>(prepared->memory()) / static_cast<double>(need);
}

TEST(WarmRun, LeNetHoldsLittleMoreMemoryThanItNeeds) {
  for (const char* optimizer : {"sgd", "adam"}) {
    Net net;
    const std::string loss = BuildLeNet(&net);
    net.Minimize(loss, optimizer, 0.01f);
    EXPECT_LE(MemoryOverNeed(&net, loss, ImageFeeds({64, 1, 28, 28})), 1.2);
  }
}

TEST(WarmRun, LstmHoldsLittleMoreMemoryThanItNeeds) {
  for (const bool is_sparse : {false, true}) {
    Net net;
    const std::string loss = BuildLstm(&net, 128, is_sparse);
    net.Minimize(loss, "adam", 0.01f);
    std::vector<size_t> lengths(32);
    for (size_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = 5 + i * 7 % 41;
    }
    EXPECT_LE(MemoryOverNeed(&net, loss, WordFeeds(lengths)), 1.2);
  }
}

// Of each step, the gradient reads what h was before it and after it, but not the product.
TEST(WarmRun, ALoopKeepsOfItsStepsWhatTheirGradientReads) {
  const LoDTensor x = Pixels({2048, 8});
  const auto held = [&x](double steps) {
    Net net;
    const std::string loss = BuildLoop(&net, steps);
    net.Minimize(loss, "sgd", 0.01f);
    Executor executor;
    Scope scope;
    executor.Run(net.startup(), &scope);
    const auto prepared = executor.Prepare(net.main(), {loss});
    std::vector<LoDTensor> fetched;
    for (int i = 0; i < 3; ++i) {
      executor.Run(*prepared, &scope, {{"x", x}}, &fetched);
    }
    return prepared->memory();
  };
  const double each = static_cast<double>(held(40) - held(20)) / 20 / static_cast<double>(x.nbytes());
  EXPECT_GT(each, 1.9);
  EXPECT_LT(each, 2.1);
}

}  // namespace
}  // namespace headrace
