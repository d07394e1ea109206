#include "framework/model_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "framework/block_runner.h"
#include "framework/errors.h"
#include "framework/file_replacement.h"
#include "framework/gradient_influence.h"
#include "framework/lod_tensor.h"
#include "framework/op_role.h"
#include "framework/tensor_serialization.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

using VarNames = std::set<std::string, std::less<>>;
// By name, which is the order of the tensors of one file.
using DeclaredVars = std::map<std::string, const VarDesc*>;

DeclaredVars PersistablesOf(const ProgramDesc& program) {
  DeclaredVars vars;
  for (size_t i = 0; i < program.num_blocks(); ++i) {
    for (const VarDesc* var : program.block(i).LocalVars()) {
      if (var->persistable && var->kind == VarKind::kLoDTensor) vars.emplace(var->name, var);
    }
  }
  return vars;
}

std::vector<std::string> VarNamesOf(const DeclaredVars& vars) {
  std::vector<std::string> names;
  std::transform(vars.begin(), vars.end(), std::back_inserter(names), [](const auto& var) { return var.first; });
  return names;
}

// Adds the files of `names` to a set that is yet to be committed.
void AddTensors(const std::vector<std::string>& names, const Scope& scope, const std::string& parameters,
                FileSetReplacement* set) {
  std::vector<const LoDTensor*> tensors;
  for (const std::string& name : names) {
    const Variable* var = scope.FindVar(name);
    const LoDTensor* tensor = var != nullptr && var->initialized() ? &var->Get<LoDTensor>() : nullptr;
    HR_ENFORCE(tensor != nullptr && tensor->initialized(), NotFound, "'", name,
               "' has no value in the scope to be saved: run the startup program first");
    tensors.push_back(tensor);
  }
  FileReplacement* file = parameters.empty() ? nullptr : &set->Add(parameters);
  for (size_t i = 0; i < names.size(); ++i) {
    WriteTensor(*tensors[i], parameters.empty() ? &set->Add(VariableFileName(names[i])) : file);
  }
}

std::vector<LoDTensor> ReadTensorsOf(const std::vector<std::string>& names, const fs::path& folder,
                                     const std::string& parameters) {
  if (!parameters.empty()) {
    return ReadTensors((folder / parameters).string(), names);
  }
  std::vector<LoDTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back(std::move(ReadTensors((folder / VariableFileName(name)).string(), {name}).front()));
  }
  return tensors;
}

// What operators write without reading it.
VarNames ComputedIn(const ProgramDesc& program) {
  VarNames computed;
  for (size_t i = 0; i < program.num_blocks(); ++i) {
    const BlockDesc& block = program.block(i);
    for (const auto& op : block.ops()) {
      const Access access(block, *op);
      std::copy_if(access.writes.begin(), access.writes.end(), std::inserter(computed, computed.end()),
                   [&](const std::string& name) { return !Contains(access.reads, name); });
    }
  }
  return computed;
}

// The folder is locked.
void LoadLocked(const ProgramDesc& program, Scope* scope, const fs::path& folder, const std::string& parameters) {
  HR_ENFORCE(scope != nullptr, InvalidArgument, "expected a scope to load variables into, got none");
  const DeclaredVars vars = PersistablesOf(program);
  const std::vector<std::string> names = VarNamesOf(vars);
  std::vector<LoDTensor> tensors = ReadTensorsOf(names, folder, parameters);
  const VarNames computed = ComputedIn(program);
  std::vector<LoDTensor*> targets;
  for (size_t i = 0; i < names.size(); ++i) {
    FitDeclared(names[i], vars.at(names[i])->tensor, computed.contains(names[i]), &tensors[i]);
  }
  for (const std::string& name : names) {
    Variable* var = scope->FindVar(name);
    targets.push_back((var != nullptr ? var : scope->Var(name))->GetMutable<LoDTensor>());
  }
  for (size_t i = 0; i < names.size(); ++i) {
    *targets[i] = std::move(tensors[i]);
  }
}

// Removes the operators that train from a block, and has the others compute as in inference.
void KeepInference(BlockDesc* block) {
  for (size_t i = block->ops().size(); i-- > 0;) {
    const OpDesc& op = *block->ops()[i];
    if (HasRole(op, kRoleTraining)) {
      block->RemoveOps(i, i + 1);
    } else if (op.attrs.contains("is_test")) {
      block->MutableOp(i).attrs["is_test"] = true;
    }
  }
}

// The operators by which Fluid's programs say what is fed and fetched.
void AddFeedAndFetch(BlockDesc* block, const std::vector<std::string>& feeds, const std::vector<std::string>& fetches) {
  for (const auto& [name, kind] : {std::pair("feed", VarKind::kFeedMinibatch), {"fetch", VarKind::kFetchList}}) {
    VarDesc& var = block->Var(name);
    var.kind = kind;
    var.persistable = true;
  }
  for (size_t i = 0; i < feeds.size(); ++i) {
    block->InsertOp(i, {"feed", {{"X", {"feed"}}}, {{"Out", {feeds[i]}}}, {{"col", static_cast<int32_t>(i)}}});
  }
  for (size_t i = 0; i < fetches.size(); ++i) {
    block->AppendOp({"fetch", {{"X", {fetches[i]}}}, {{"Out", {"fetch"}}}, {{"col", static_cast<int32_t>(i)}}});
  }
}

// Throws InvalidArgument if a model would read from a reader, which only the program that it was made of has.
void CheckNothingIsRead(const BlockDesc& block, const std::vector<std::string>& feeds,
                        const std::vector<std::string>& fetches) {
  VarNames used(fetches.begin(), fetches.end());
  for (const auto& op : block.ops()) {
    const Access access(block, *op);
    used.insert(access.reads.begin(), access.reads.end());
  }
  for (const std::string& name : feeds) used.erase(name);
  for (const auto& op : block.ops()) {
    if (op->type != "read") continue;
    std::string unfed;
    for (const std::string& name : op->Output("Out")) {
      if (used.contains(name)) unfed += StrCat(unfed.empty() ? "'" : "', '", name);
    }
    Throw<InvalidArgument>("what is fetched depends on ", unfed, "', which the program reads from '",
                           op->Input("Reader").front(), "': a model for inference has to be fed with it");
  }
}

// What the operators of this type take from, or put into, the columns of a list. A program may have no operator for
// some column: Paddle leaves out inputs that nothing depends on. `path`: the program's.
std::vector<std::string> InColumns(const BlockDesc& block, std::string_view type, const fs::path& path) {
  std::map<int32_t, std::string> names;
  for (const auto& op : block.ops()) {
    if (op->type != type) continue;
    const auto column = op->Attr<int32_t>("col");
    const std::string& name = (type == "feed" ? op->Output("Out") : op->Input("X")).at(0);
    const auto [found, is_new] = names.emplace(column, name);
    HR_ENFORCE(column >= 0 && is_new, DataLoss, "'", path.string(), "': the operator ", type, " of '", name,
               "' has column ", column, is_new ? "" : StrCat(", as that of '", found->second, "' has"));
  }
  std::vector<std::string> columns;
  std::transform(names.begin(), names.end(), std::back_inserter(columns), [](auto& name) { return name.second; });
  return columns;
}

// What is fed does not persist, even if the program that was trained fetched or kept it.
void MakeTransient(BlockDesc* block, const std::vector<std::string>& feeds) {
  for (const std::string& name : feeds) block->MutableVar(name).persistable = false;
}

}  // namespace

void SaveProgram(const ProgramDesc& program, const fs::path& path) {
  FileReplacement file(path);
  file.Write(program.Serialize());
  file.Commit();
}

std::unique_ptr<ProgramDesc> LoadProgram(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  HR_ENFORCE(file.is_open(), IoError, "cannot read the program '", path.string(), "': ", std::strerror(errno));
  HR_ENFORCE(fs::is_regular_file(path), IoError, "cannot read the program '", path.string(), "': it is not a file");
  std::string bytes;
  try {
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure& error) {  // thrown by the buffer, which no stream turns into a flag here
    Throw<IoError>("cannot read the program '", path.string(), "': ", error.what());
  }
  try {
    return ProgramDesc::Parse(bytes);
  } catch (Error& error) {
    error.AddNote(StrCat("the program is '", path.string(), "'"));
    throw;
  }
}

namespace {

// Nothing is left in the blocks that no operator runs any more: what they read may have gone.
void EmptyUnusedBlocks(ProgramDesc* program) {
  std::vector<bool> used(program->num_blocks());
  std::vector<size_t> left = {0};
  while (!left.empty()) {
    const size_t index = left.back();
    left.pop_back();
    const BlockDesc& block = program->block(index);  // OutOfRange if an operator has been given a wrong one
    if (used[index]) continue;
    used[index] = true;
    for (const auto& op : block.ops()) {
      for (const BlockRef inner : op->Blocks()) {
        left.push_back(static_cast<size_t>(inner.index));
      }
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    BlockDesc& block = program->block(i);
    block.RemoveOps(0, block.ops().size());
    for (const VarDesc* var : block.LocalVars()) block.RemoveVar(var->name);
  }
}

// What operators of a program count up.
VarNames CountedIn(const ProgramDesc& program) {
  VarNames counted;
  for (size_t i = 0; i < program.num_blocks(); ++i) {
    for (const auto& op : program.block(i).ops()) {
      if (op->type == "increment") counted.insert(op->Output("Out").begin(), op->Output("Out").end());
    }
  }
  return counted;
}

// Random operators whose counter, in input Seed, is among those that were `counted` and that nothing counts any more
// would draw the same numbers in every run: has them draw others.
void DrawAfresh(const VarNames& counted, ProgramDesc* program) {
  const VarNames still_counted = CountedIn(*program);
  for (size_t i = 0; i < program->num_blocks(); ++i) {
    BlockDesc& block = program->block(i);
    for (size_t k = 0; k < block.ops().size(); ++k) {
      const std::vector<std::string>& counter = block.ops()[k]->Input("Seed");
      if (counter.empty() || !counted.contains(counter[0]) || still_counted.contains(counter[0])) continue;
      OpDesc& op = block.MutableOp(k);
      op.inputs.erase("Seed");
      op.attrs["seed"] = int32_t{0};
    }
  }
}

// Whether an operator gives a program data from outside.
bool GivesData(const OpDesc& op) { return op.type == "read" || op.type == "feed"; }

// The feeds that a program computes itself, and that stand for the results. Others stand for data: what changes these
// in place changes the feeds.
VarNames Computed(const BlockDesc& block, const std::vector<std::string>& feeds) {
  VarNames computed;
  VarNames left;
  std::copy_if(feeds.begin(), feeds.end(), std::inserter(left, left.end()),
               [&](const std::string& name) { return !block.GetVar(name).BoolAttr("is_data", false); });
  for (const auto& op : block.ops()) {
    std::vector<std::string> reads = op->InputNames();
    std::vector<std::string> writes = op->OutputNames();
    AddInnerNames(block, *op, &reads, &writes);
    for (const std::string& name : reads) left.erase(name);
    for (const std::string& name : writes) {
      if (left.erase(name) > 0 && !GivesData(*op)) computed.insert(name);
    }
  }
  return computed;
}

}  // namespace

void Prune(ProgramDesc* program, const std::vector<std::string>& feeds, const std::vector<std::string>& fetches) {
  HR_ENFORCE(program != nullptr, InvalidArgument, "expected a program to prune, got none");
  BlockDesc* block = &program->block(0);
  const VarNames counted = CountedIn(*program);
  VarNames needed;
  VarNames used;
  for (const auto& [names, purpose] : {std::pair(&feeds, "feed"), {&fetches, "fetch"}}) {
    for (const std::string& name : *names) {
      HR_ENFORCE(block->FindVar(name) != nullptr, NotFound, "the program has no variable '", name, "' to ", purpose);
      used.insert(name);
    }
  }
  const VarNames computed = Computed(*block, feeds);
  const auto need = [&](const std::string& name) {
    if (!computed.contains(name)) needed.insert(name);
  };
  std::for_each(fetches.begin(), fetches.end(), need);
  for (size_t i = block->ops().size(); i-- > 0;) {
    const OpDesc& op = *block->ops()[i];
    const Access access(*block, op);
    if (std::none_of(access.writes.begin(), access.writes.end(), [&](const auto& name) {
          return needed.contains(name) && !(GivesData(op) && Contains(feeds, name));
        })) {
      block->RemoveOps(i, i + 1);
      continue;
    }
    // What an operator writes stays needed, since it may also read it.
    std::for_each(access.reads.begin(), access.reads.end(), need);
  }
  EmptyUnusedBlocks(program);
  DrawAfresh(counted, program);
  for (const auto& op : block->ops()) {
    const Access access(*block, *op);
    used.insert(access.reads.begin(), access.reads.end());
    used.insert(access.writes.begin(), access.writes.end());
  }
  for (const VarDesc* var : block->LocalVars()) {
    if (!used.contains(var->name)) block->RemoveVar(var->name);
  }
}

void SavePersistables(const ProgramDesc& program, const Scope& scope, const fs::path& folder,
                      const std::string& parameters) {
  FileSetReplacement set(folder);
  AddTensors(VarNamesOf(PersistablesOf(program)), scope, parameters, &set);
  set.Commit();
}

void LoadPersistables(const ProgramDesc& program, Scope* scope, const fs::path& folder, const std::string& parameters) {
  const FileSetLock lock(folder);
  LoadLocked(program, scope, folder, parameters);
}

ProgramDesc InferenceProgram(const ProgramDesc& program, const std::vector<std::string>& feeds,
                             const std::vector<std::string>& fetches) {
  HR_ENFORCE(!fetches.empty(), InvalidArgument, "a model for inference needs something to fetch");
  ProgramDesc inference(program);
  for (size_t i = 0; i < inference.num_blocks(); ++i) KeepInference(&inference.block(i));
  DrawAfresh(CountedIn(program), &inference);
  Prune(&inference, feeds, fetches);
  CheckNothingIsRead(inference.block(0), feeds, fetches);
  AddFeedAndFetch(&inference.block(0), feeds, fetches);
  MakeTransient(&inference.block(0), feeds);
  return inference;
}

void SaveInferenceModel(const ProgramDesc& program, const std::vector<std::string>& feeds,
                        const std::vector<std::string>& fetches, const Scope& scope, const fs::path& folder,
                        const ModelFiles& files) {
  const ProgramDesc inference = InferenceProgram(program, feeds, fetches);
  const std::vector<std::string> names = VarNamesOf(PersistablesOf(inference));
  const bool is_shared = files.parameters.empty()
                             ? std::any_of(names.begin(), names.end(),
                                           [&](const auto& name) { return VariableFileName(name) == files.program; })
                             : files.parameters == files.program;
  HR_ENFORCE(!is_shared, InvalidArgument, "'", files.program, "' cannot be the file of the program and of parameters");
  FileSetReplacement set(folder);
  set.Add(files.program).Write(inference.Serialize());
  AddTensors(names, scope, files.parameters, &set);
  set.Commit();
}

InferenceModel LoadInferenceModel(const fs::path& folder, Scope* scope, const ModelFiles& files) {
  const FileSetLock lock(folder);
  InferenceModel model;
  const fs::path path = folder / files.program;
  model.program = LoadProgram(path);
  model.feeds = InColumns(model.program->block(0), "feed", path);
  model.fetches = InColumns(model.program->block(0), "fetch", path);
  HR_ENFORCE(!model.fetches.empty(), DataLoss, "'", path.string(),
             "' does not say what to fetch: it has no operator fetch");
  LoadLocked(*model.program, scope, folder, files.parameters);  // a file of Fluid's has the values of feeds, too
  MakeTransient(&model.program->block(0), model.feeds);
  return model;
}

std::string VariableFileName(std::string_view name) {
  bool is_plain = name.find('\0') == std::string_view::npos;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    is_plain = is_plain && begin < end && name[begin] != '.';
    begin = end + 1;
  }
  if (is_plain) return std::string(name);
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  constexpr std::string_view kUnquoted = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~";
  std::string quoted;
  for (const char c : name) {
    if (kUnquoted.find(c) != std::string_view::npos) {
      quoted += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      quoted += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return quoted;
}

}  // namespace headrace
