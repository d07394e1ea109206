// Fuzz target: the bytes of a program, parsed, differentiated and run.
//
// Whatever the bytes are, each step either works or throws an error of the Error family.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/backward.h"
#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/operator.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/wait_hook.h"
#include "tests/fuzz/memory_limit.h"

namespace headrace {
namespace {

constexpr int64_t kMaxElements = 4096;
constexpr int kMaxSteps = 64;  // of all loops of a program, in three runs

// A tensor of the declared shape, with `unknown` for each unknown dimension; not initialised if it would be large.
LoDTensor MakeTensor(const TensorSpec& spec, int64_t unknown) {
  DDim dims = spec.dims;
  int64_t numel = 1;
  for (int64_t& dim : dims) {
    dim = dim < 0 ? unknown : dim;
    if (dim > kMaxElements || (numel *= dim) > kMaxElements) {
      return {};
    }
  }
  LoDTensor tensor;
  auto* bytes = static_cast<unsigned char*>(tensor.Resize(dims).mutable_data(spec.dtype));
  std::fill_n(bytes, tensor.nbytes(), 0);
  for (int64_t i = 0; i < numel; ++i) {
    if (spec.dtype == DataType::kFloat32) {
      reinterpret_cast<float*>(bytes)[i] = static_cast<float>(i % 7) * 0.5F - 1;
    } else if (spec.dtype == DataType::kFloat64) {
      reinterpret_cast<double*>(bytes)[i] = static_cast<double>(i % 7) * 0.5 - 1;
    } else {
      bytes[static_cast<size_t>(i) * SizeOf(spec.dtype)] = i % 2;  // a class, an id, a truth value
    }
  }
  if (!dims.empty() && spec.lod_level > 0 && spec.lod_level < 4) {
    const auto rows = static_cast<size_t>(dims[0]);
    LoD lod(static_cast<size_t>(spec.lod_level), {0, 1});
    lod.back() = {0, rows / 2, rows};
    if (lod.size() > 1) {
      lod[lod.size() - 2] = {0, 1, 2};
    }
    for (size_t level = lod.size() - 1; level-- > 1;) {
      lod[level - 1] = {0, 1, 2};
    }
    tensor.set_lod(std::move(lod));
  }
  return tensor;
}

// Fills what `block` reads before it writes it: persistable variables in `scope`, the others in what is returned.
std::map<std::string, LoDTensor> MakeInputs(const BlockDesc& block, int64_t unknown, Scope* scope) {
  std::map<std::string, LoDTensor> feeds;
  std::set<std::string> written;
  for (const auto& op : block.ops()) {
    for (const std::string& name : op->InputNames()) {
      const VarDesc* var = block.FindVar(name);
      if (var == nullptr || var->kind != VarKind::kLoDTensor || written.contains(name)) {
        continue;
      }
      LoDTensor tensor = MakeTensor(var->tensor, unknown);
      if (!tensor.initialized()) {
        continue;
      }
      if (var->persistable) {
        *scope->Var(name)->GetMutable<LoDTensor>() = std::move(tensor);
      } else {
        feeds.insert_or_assign(name, std::move(tensor));
      }
    }
    for (const std::string& name : op->OutputNames()) {
      written.insert(name);
    }
  }
  return feeds;
}

void Run(const ProgramDesc& program, size_t block_index) {
  const BlockDesc& block = program.block(block_index);
  std::vector<std::string> fetches;
  for (const VarDesc* var : block.LocalVars()) {
    if (var->kind == VarKind::kLoDTensor && fetches.size() < 4) {
      fetches.push_back(var->name);
    }
  }
  // A loop of the program may be endless.
  int steps = 0;
  const ScopedWaitHook hook(
      [&steps] { HR_ENFORCE(++steps <= kMaxSteps, FailedPrecondition, "loops take too many steps"); },
      std::chrono::milliseconds(0));
  Scope scope;
  const Executor executor;
  const auto prepared = executor.Prepare(program, fetches, block_index);
  // Again while everything is warm, then with other shapes.
  for (const int64_t unknown : {2, 2, 3}) {
    try {
      std::vector<LoDTensor> fetched;
      executor.Run(*prepared, &scope, MakeInputs(block, unknown, &scope), &fetched);
    } catch (const Error&) {
    }
  }
}

// Appends the gradient of the last variable that may be a loss, by whatever it depends on.
bool Differentiate(ProgramDesc* program) {
  const BlockDesc& block = program->block(0);
  std::vector<std::string> inputs;
  for (const VarDesc* var : block.LocalVars()) {
    if (var->kind == VarKind::kLoDTensor && !var->stop_gradient && var->tensor.dtype == DataType::kFloat32) {
      inputs.push_back(var->name);
    }
  }
  for (size_t i = block.ops().size(); i-- > 0;) {
    for (const std::string& name : block.ops()[i]->OutputNames()) {
      const VarDesc* var = block.FindVar(name);
      if (var != nullptr && var->tensor.dims == DDim{1}) {
        return !AppendBackward(program, name).empty() || !AppendBackward(program, name, inputs).empty();
      }
    }
  }
  return false;
}

// Whether a run would leave files behind, wherever the program says.
bool WritesFiles(const ProgramDesc& program) {
  for (size_t i = 0; i < program.num_blocks(); ++i) {
    const auto& ops = program.block(i).ops();
    if (std::any_of(ops.begin(), ops.end(),
                    [](const auto& op) { return op->type == "save" || op->type == "save_combine"; })) {
      return true;
    }
  }
  return false;
}

void Fuzz(std::string_view bytes) {
  const auto program = ProgramDesc::Parse(bytes);
  const std::string serialized = program->Serialize();
  if (ProgramDesc::Parse(serialized)->Serialize() != serialized) {
    std::abort();  // a program that was accepted must survive a round trip
  }
  if (WritesFiles(*program)) {
    return;
  }
  for (size_t block = 0; block < program->num_blocks() && block < 4; ++block) {
    try {
      Run(*program, block);
    } catch (const Error&) {
    }
  }
  if (Differentiate(program.get())) {
    Run(*program, 0);
  }
}

}  // namespace
}  // namespace headrace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  std::cerr.setstate(std::ios::failbit);  // print writes there
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const headrace::MemoryLimit limit;
  try {
    headrace::Fuzz({reinterpret_cast<const char*>(data), size});
  } catch (const headrace::Error&) {
  }
  return 0;
}
