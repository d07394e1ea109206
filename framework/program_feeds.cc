#include "framework/program_feeds.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

// Whether the shape and the dtype that are declared are those of what is fed: fluid.data asks for it, and a parameter
// stays as it is. Others are checked where an operator needs it, as in Fluid, whose programs declare the longest
// sentence, say, and feed shorter ones.
bool IsFedAsDeclared(const VarDesc& desc) {
  return desc.BoolAttr("need_check_feed", false) || (desc.persistable && !desc.MayBeFedOtherwise());
}

// What a variable gets that is fed with `value`. Programs of Fluid feed float16 as its bits, in uint16.
LoDTensor FedValue(const VarDesc& desc, const LoDTensor& value) {
  if (desc.tensor.dtype != DataType::kFloat16 || value.dtype() != DataType::kUInt16) {
    return value;
  }
  LoDTensor numbers;
  void* to = numbers.Resize(value.dims()).mutable_data(DataType::kFloat16);
  std::copy_n(static_cast<const std::byte*>(value.raw_data()), value.nbytes(), static_cast<std::byte*>(to));
  numbers.set_lod(value.lod());
  return numbers;
}

}  // namespace

ProgramFeeds::ProgramFeeds(const BlockDesc& block, const std::vector<const OpDesc*>& order)
    : block_(block), order_(order) {
  for (const OpDesc* op : order) {
    if (op->type == "feed") {
      feed_outputs_.push_back(op->Output("Out").front());
    }
  }
}

bool ProgramFeeds::Expect(const Feeds& feeds) {
  if (std::equal(fed_.begin(), fed_.end(), feeds.begin(), feeds.end(),
                 [](const Fed& known, const auto& feed) { return known.name == feed.first; })) {
    return false;
  }
  std::vector<Fed> expected;
  for (const auto& [name, value] : feeds) {
    expected.push_back({.name = name, .desc = block_.FindVar(name)});
  }
  fed_ = std::move(expected);
  return true;
}

void ProgramFeeds::Check(const Feeds& feeds) const {
  auto fed = fed_.begin();
  for (const auto& [name, value] : feeds) {
    try {
      CheckFeed(*fed++, value);
    } catch (Error& error) {
      error.SetVariable(name);
      throw;
    }
  }
}

void ProgramFeeds::CheckFeed(const Fed& feed, const LoDTensor& value) {
  const std::string& name = feed.name;
  const VarDesc* desc = feed.desc;
  HR_ENFORCE(desc != nullptr, NotFound, "cannot feed '", name, "': the program declares no such variable");
  HR_ENFORCE(desc->kind == VarKind::kLoDTensor, TypeMismatch, "cannot feed '", name, "': it is a ",
             VarKindName(desc->kind), ", not a LoDTensor");
  HR_ENFORCE(value.initialized(), InvalidArgument, "the tensor fed to '", name, "' is empty");
  const TensorSpec& spec = desc->tensor;
  const bool strict = IsFedAsDeclared(*desc);
  HR_ENFORCE(value.dtype() == spec.dtype || (!strict && MayBeGivenAs(spec.dtype, value.dtype())), TypeMismatch, "'",
             name, "' is declared as ", DataTypeName(spec.dtype), ", fed with ", DataTypeName(value.dtype()));
  HR_ENFORCE(!strict || Matches(spec.dims, value.dims()), InvalidArgument, "'", name, "' is declared with shape ",
             ToString(spec.dims), ", fed with ", ToString(value.dims()));
  if (!value.lod().empty()) {
    HR_ENFORCE(!value.dims().empty(), InvalidArgument, "'", name, "' is fed with a scalar that has an LoD");
    CheckLoD(value.lod(), value.dims()[0]);
  }
}

void ProgramFeeds::Bind(const Scope& scope) {
  for (Fed& feed : fed_) {
    feed.variable = feed.desc == nullptr ? nullptr : &scope.GetVar(feed.name);
  }
  from_feed_lists_ = scope.GetVars(feed_outputs_);
}

// What is to stay is copied: the memory of the value may be the caller's, who goes on writing to it.
void ProgramFeeds::Put(const Feeds& feeds) {
  auto feed = fed_.begin();
  for (const auto& [name, value] : feeds) {
    auto* tensor = feed->variable->GetMutable<LoDTensor>();
    if (feed->desc->persistable) {
      tensor->CopyFrom(FedValue(*feed->desc, value));
      tensor->set_lod(value.lod());
    } else {
      feed->is_in = true;
      *tensor = FedValue(*feed->desc, value);
    }
    ++feed;
  }
}

void ProgramFeeds::TakeOut() {
  for (Fed& feed : fed_) {
    if (feed.is_in && feed.variable->IsType<LoDTensor>()) {  // an operator may have put something else there
      *feed.variable->GetMutable<LoDTensor>() = LoDTensor();
    }
    feed.is_in = false;
  }
  for (Variable* variable : from_feed_lists_) {
    if (variable->IsType<LoDTensor>()) {
      *variable->GetMutable<LoDTensor>() = LoDTensor();
    }
  }
}

std::string ProgramFeeds::Deviations(const Feeds& feeds, const Scope& scope) const {
  std::string all;
  const auto compare = [&all, this](const std::string& name, const LoDTensor& value, const std::string& origin) {
    const TensorSpec& spec = block_.FindVar(name)->tensor;
    if (value.dtype() == spec.dtype && Matches(spec.dims, value.dims()) && value.numel() > 0 &&
        value.lod_level() == static_cast<size_t>(spec.lod_level)) {
      return;
    }
    const auto levels = [](size_t count) { return count == 0 ? std::string() : StrCat(", LoD level ", count); };
    all += StrCat(all.empty() ? "" : "; ", "'", name, "' is declared as ", DataTypeName(spec.dtype), " ",
                  ToString(spec.dims), levels(static_cast<size_t>(spec.lod_level)), ", but was given as ",
                  DataTypeName(value.dtype()), " ", ToString(value.dims()), levels(value.lod_level()), origin);
  };
  for (const auto& [name, value] : feeds) {
    compare(name, value, "");
  }
  for (const OpDesc* op : order_) {
    if (op->type != "read") {
      continue;
    }
    const std::vector<std::string>& names = op->Output("Out");
    for (size_t i = 0; i < names.size(); ++i) {
      const Variable* variable = scope.FindVar(names[i]);
      if (block_.FindVar(names[i]) != nullptr && variable != nullptr && variable->IsType<LoDTensor>() &&
          variable->Get<LoDTensor>().initialized()) {
        compare(names[i], variable->Get<LoDTensor>(), StrCat(", value ", i, " of '", op->Input("Reader").front(), "'"));
      }
    }
  }
  return all;
}

}  // namespace headrace
