// Programs, and the variables that persist in them, in files: those that fluid.io.save_persistables and
// save_inference_model write, here, in Fluid and in Paddle.
//
//   SavePersistables(main, scope, "state");   // later, perhaps in another process:
//   LoadPersistables(main, &scope, "state");
//
//   SaveInferenceModel(main, {"x"}, {"probabilities"}, scope, "model");
//   const InferenceModel model = LoadInferenceModel("model", &scope);
//   const auto prepared = executor.Prepare(*model.program, model.fetches);
//   executor.Run(*prepared, &scope, {{model.feeds[0], x}}, &fetched);
//
// What persists are the LoDTensors that a program declares as persistable, in any of its blocks. By default each has a
// file of its own, of its name; with `parameters`, one file has all, in the order of their names. What one call saves
// is replaced together and is on the disk when it returns: whatever happens, what is loaded later is all of what was
// there before, or all of what has been saved (see file_replacement.h). What a call loads is complete before a variable
// is changed; after an error, the scope is as it was.
//
// Thread-safety: nobody may write the variables that are saved, or use those that are loaded, during a call. Any number
// of threads and processes may save to and load from a folder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "framework/program_desc.h"
#include "framework/scope.h"

namespace headrace {

// The file of a program, and of what persists in it; relative to the folder of a model.
struct ModelFiles {
  std::string program = "__model__";
  std::string parameters;  // empty: one for each variable
};

// A program that computes `fetches` when `feeds` are fed, as it was loaded.
struct InferenceModel {
  std::unique_ptr<ProgramDesc> program;
  std::vector<std::string> feeds;
  std::vector<std::string> fetches;
};

// A program alone. Throws IoError; SaveProgram also what ProgramDesc::Serialize throws,
// LoadProgram what ProgramDesc::Parse throws, naming the file.
HEADRACE_API void SaveProgram(const ProgramDesc& program, const std::filesystem::path& path);
HEADRACE_API std::unique_ptr<ProgramDesc> LoadProgram(const std::filesystem::path& path);

// What persists in `program`: parameters, statistics and what optimizers keep. Throws NotFound, naming it, for a
// variable that has no value; IoError.
HEADRACE_API void SavePersistables(const ProgramDesc& program, const Scope& scope, const std::filesystem::path& folder,
                                   const std::string& parameters = "");
// Puts it into `scope`, where variables are made as they are needed. Throws IoError for a file that is missing;
// DataLoss for a damaged one; InvalidArgument or TypeMismatch, naming the variable, for a tensor of another shape or
// dtype than `program` declares. The shape of what operators compute without reading it before may differ: it is the
// last run's.
HEADRACE_API void LoadPersistables(const ProgramDesc& program, Scope* scope, const std::filesystem::path& folder,
                                   const std::string& parameters = "");

// Removes the operators of the root block that do not help to compute `fetches` from `feeds`, the variables that are
// unused then, and what is in blocks that no operator runs any more. Random operators whose runs nothing counts any
// more draw afresh in each run. Throws NotFound for a name that the program does not declare.
HEADRACE_API void Prune(ProgramDesc* program, const std::vector<std::string>& feeds,
                        const std::vector<std::string>& fetches);

// The part of `program` that computes `fetches` from `feeds`: its operators compute as in inference, those whose role
// is training are gone, and operators `feed` and `fetch` give both in order. Throws NotFound for a name that the
// program does not declare; InvalidArgument if there is nothing to fetch, or if it needs a reader.
HEADRACE_API ProgramDesc InferenceProgram(const ProgramDesc& program, const std::vector<std::string>& feeds,
                                          const std::vector<std::string>& fetches);
// Saves that program and what persists in it. Throws as InferenceProgram and SavePersistables; InvalidArgument if a
// variable would be written to the program's file.
HEADRACE_API void SaveInferenceModel(const ProgramDesc& program, const std::vector<std::string>& feeds,
                                     const std::vector<std::string>& fetches, const Scope& scope,
                                     const std::filesystem::path& folder, const ModelFiles& files = {});
// Throws as LoadProgram and LoadPersistables; DataLoss for a program that does not say what to fetch, or says
// twice what a column is.
HEADRACE_API InferenceModel LoadInferenceModel(const std::filesystem::path& folder, Scope* scope,
                                               const ModelFiles& files = {});

// The file of a variable: its name, with folders for what has "/" in it. A name that would lead elsewhere, or to a
// hidden file, is quoted as in addresses of the web (%2E for a dot).
HEADRACE_API std::string VariableFileName(std::string_view name);

}  // namespace headrace
