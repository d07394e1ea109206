// What a run of a program is fed: put into the variables that it names before the run, and taken out after it.
//
// Thread-safety: none.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "framework/block_desc.h"
#include "framework/lod_tensor.h"
#include "framework/op_desc.h"
#include "framework/scope.h"

namespace headrace {

class ProgramFeeds {
 public:
  using Feeds = std::map<std::string, LoDTensor>;

  // For runs of `block`, whose operators run in `order`; both outlive it and do not change.
  ProgramFeeds(const BlockDesc& block, const std::vector<const OpDesc*>& order);

  // Before each run. Returns whether it is fed other names than the one before: then Bind has to follow.
  bool Expect(const Feeds& feeds);
  // Throws NotFound, TypeMismatch or InvalidArgument, naming the variable, for one of the feeds that Expect was given
  // if the block does not declare it, or not so.
  void Check(const Feeds& feeds) const;
  // Finds the variables, which must stay where they are until the next Bind.
  void Bind(const Scope& scope);

  // Puts in what Expect was given.
  void Put(const Feeds& feeds);
  // So that memory which may be a slot of an arena goes back to its owner, and a feed forgotten next time is noticed.
  void TakeOut();

  // "'x' is declared as float32 [-1, 3], but was given as float32 [2, 4]" for each of what the program was given, feeds
  // or what it has read into `scope`, that is not as it declares it, or is empty; else "".
  std::string Deviations(const Feeds& feeds, const Scope& scope) const;

 private:
  struct Fed {
    std::string name;
    const VarDesc* desc;           // nullptr: not declared
    Variable* variable = nullptr;  // once bound
    bool is_in = false;            // and to be taken out
  };
  static void CheckFeed(const Fed& feed, const LoDTensor& value);

  const BlockDesc& block_;
  const std::vector<const OpDesc*>& order_;
  std::vector<Fed> fed_;                    // in the last run, in the order of the map
  std::vector<std::string> feed_outputs_;   // what the operators `feed` write, unless it is fed by its name
  std::vector<Variable*> from_feed_lists_;  // the same, once bound
};

}  // namespace headrace
