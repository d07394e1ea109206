#include "framework/model_files.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "framework/errors.h"
#include "framework/file_replacement.h"
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
    for (const auto& op : program.block(i).ops()) {
      const auto inputs = op->InputNames();
      for (const std::string& name : op->OutputNames()) {
        if (std::find(inputs.begin(), inputs.end(), name) == inputs.end()) computed.insert(name);
      }
    }
  }
  return computed;
}

bool HasDeclaredDims(const DDim& declared, const DDim& dims) {
  return std::equal(declared.begin(), declared.end(), dims.begin(), dims.end(),
                    [](int64_t wanted, int64_t extent) { return wanted == -1 || wanted == extent; });
}

// The folder is locked.
void LoadLocked(const ProgramDesc& program, Scope* scope, const fs::path& folder, const std::string& parameters) {
  const DeclaredVars vars = PersistablesOf(program);
  const std::vector<std::string> names = VarNamesOf(vars);
  std::vector<LoDTensor> tensors = ReadTensorsOf(names, folder, parameters);
  const VarNames computed = ComputedIn(program);
  std::vector<LoDTensor*> targets;
  for (size_t i = 0; i < names.size(); ++i) {
    const TensorSpec& declared = vars.at(names[i])->tensor;
    HR_ENFORCE(tensors[i].dtype() == declared.dtype, TypeMismatch, "variable '", names[i], "' is ",
               DataTypeName(declared.dtype), ", but ", DataTypeName(tensors[i].dtype()), " was saved");
    if (tensors[i].dims().empty() && declared.dims == DDim{1}) {  // so Paddle's later releases store single numbers
      tensors[i].Resize({1});
    }
    HR_ENFORCE(HasDeclaredDims(declared.dims, tensors[i].dims()) || computed.contains(names[i]), InvalidArgument,
               "variable '", names[i], "' has shape ", ToString(declared.dims), ", but ", ToString(tensors[i].dims()),
               " was saved");
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
    const auto inputs = op->InputNames();
    used.insert(inputs.begin(), inputs.end());
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

// What the operators of this type take from, or put into, the columns of a list.
std::vector<std::string> InColumns(const BlockDesc& block, std::string_view type) {
  std::map<int32_t, std::string> names;
  for (const auto& op : block.ops()) {
    if (op->type != type) continue;
    names[op->Attr<int32_t>("col")] = (type == "feed" ? op->Output("Out") : op->Input("X")).at(0);
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
  HR_ENFORCE(file.is_open() && fs::is_regular_file(path), IoError, "cannot read the program '", path.string(), "'");
  try {
    return ProgramDesc::Parse(std::string(std::istreambuf_iterator<char>(file), {}));
  } catch (const DataLoss& error) {
    Throw<DataLoss>("'", path.string(), "': ", error.what());
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
    if (used[index]) continue;
    used[index] = true;
    for (const auto& op : program->block(index).ops()) {
      for (const auto& [name, value] : op->attrs) {
        if (const auto* inner = std::get_if<BlockRef>(&value)) left.push_back(static_cast<size_t>(inner->index));
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

}  // namespace

void Prune(ProgramDesc* program, const std::vector<std::string>& feeds, const std::vector<std::string>& fetches) {
  BlockDesc* block = &program->block(0);
  VarNames needed;
  VarNames used;
  const auto need = [&](const std::string& name) {
    used.insert(name);
    if (std::find(feeds.begin(), feeds.end(), name) == feeds.end()) needed.insert(name);
  };
  for (const auto& [names, purpose] : {std::pair(&feeds, "feed"), {&fetches, "fetch"}}) {
    for (const std::string& name : *names) {
      HR_ENFORCE(block->FindVar(name) != nullptr, NotFound, "the program has no variable '", name, "' to ", purpose);
      need(name);
    }
  }
  for (size_t i = block->ops().size(); i-- > 0;) {
    const OpDesc& op = *block->ops()[i];
    const auto outputs = op.OutputNames();
    if (std::none_of(outputs.begin(), outputs.end(), [&](const auto& name) { return needed.contains(name); })) {
      block->RemoveOps(i, i + 1);
      continue;
    }
    used.insert(outputs.begin(), outputs.end());
    // What an operator writes stays needed, since it may also read it.
    const auto inputs = op.InputNames();
    std::for_each(inputs.begin(), inputs.end(), need);
  }
  for (const VarDesc* var : block->LocalVars()) {
    if (!used.contains(var->name)) block->RemoveVar(var->name);
  }
  EmptyUnusedBlocks(program);
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

void SaveInferenceModel(const ProgramDesc& program, const std::vector<std::string>& feeds,
                        const std::vector<std::string>& fetches, const Scope& scope, const fs::path& folder,
                        const ModelFiles& files) {
  HR_ENFORCE(!fetches.empty(), InvalidArgument, "a model for inference needs something to fetch");
  ProgramDesc inference(program);
  for (size_t i = 0; i < inference.num_blocks(); ++i) KeepInference(&inference.block(i));
  Prune(&inference, feeds, fetches);
  CheckNothingIsRead(inference.block(0), feeds, fetches);
  AddFeedAndFetch(&inference.block(0), feeds, fetches);
  MakeTransient(&inference.block(0), feeds);
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
  model.program = LoadProgram(folder / files.program);
  model.feeds = InColumns(model.program->block(0), "feed");
  model.fetches = InColumns(model.program->block(0), "fetch");
  HR_ENFORCE(!model.fetches.empty(), DataLoss, "'", (folder / files.program).string(),
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
