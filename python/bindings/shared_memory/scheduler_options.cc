#include "python/bindings/shared_memory/scheduler_options.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/arena/arena.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::Collation;
using shared_memory::IndexOrder;
using shared_memory::SchedulerOptions;

IndexOrder OrderOf(const std::string& name) {
  constexpr std::pair<std::string_view, IndexOrder> kOrders[] = {{"sequential", IndexOrder::kSequential},
                                                                 {"shuffled", IndexOrder::kShuffled},
                                                                 {"explicit", IndexOrder::kExplicit},
                                                                 {"stream", IndexOrder::kStream}};
  for (const auto& [known, order] : kOrders) {
    if (name == known) {
      return order;
    }
  }
  Throw<InvalidArgument>("order: expected sequential, shuffled, explicit or stream, got '", name, "'");
}

Collation CollationOf(const std::optional<std::string>& name) {
  constexpr std::pair<std::string_view, Collation> kCollations[] = {{"whole", Collation::kWhole},
                                                                    {"split", Collation::kSplit}};
  if (!name) {
    return Collation::kNone;
  }
  for (const auto& [known, collation] : kCollations) {
    if (*name == known) {
      return collation;
    }
  }
  Throw<InvalidArgument>("collate: expected None, whole or split, got '", *name, "'");
}

// Takes the options out of the arguments one by one.
class Arguments {
 public:
  explicit Arguments(const py::kwargs& arguments) : arguments_(arguments.attr("copy")()) {}

  template <typename Value>
  void Take(const char* name, Value* option) {
    TakeAs<Value>(name, [&](Value value) { *option = std::move(value); });
  }

  template <typename Value, typename Use>
  void TakeAs(const char* name, const Use& use) {
    if (!arguments_.contains(name)) {
      return;
    }
    const py::object value = arguments_.attr("pop")(name);
    try {
      use(py::cast<Value>(value));
    } catch (const py::cast_error&) {
      Throw<TypeMismatch>(name, ": got ", py::cast<std::string>(py::repr(value)), ", of type ",
                          Py_TYPE(value.ptr())->tp_name, ", which it cannot be");
    }
  }

  void RequireNoMore() const {
    for (const auto& [name, value] : arguments_) {
      Throw<InvalidArgument>("a scheduler has no option ", py::cast<std::string>(py::repr(name)));
    }
  }

 private:
  py::dict arguments_;
};

}  // namespace

SchedulerOptions SchedulerOptionsOf(const py::kwargs& keywords) {
  SchedulerOptions options;
  Arguments arguments(keywords);
  arguments.TakeAs<std::string>("order", [&](const std::string& name) { options.arena.order = OrderOf(name); });
  arguments.Take("dataset_length", &options.arena.dataset_length);
  arguments.Take("seed", &options.arena.seed);
  arguments.Take("slot_count", &options.arena.slot_count);
  arguments.Take("fewest_slots", &options.arena.fewest_slots);
  arguments.Take("slot_bytes", &options.arena.slot_bytes);
  arguments.Take("recheck_ms", &options.arena.recheck_ms);
  arguments.Take("trace_events", &options.arena.trace_events);
  arguments.Take("batch_size", &options.batch_size);
  arguments.Take("drop_last", &options.drop_last);
  arguments.Take("rank", &options.rank);
  arguments.Take("world", &options.world);
  arguments.Take("streams", &options.streams);
  arguments.Take("prefetch", &options.prefetch);
  arguments.Take("prefetch_bytes", &options.prefetch_bytes);
  arguments.Take("producers", &options.producers);
  arguments.TakeAs<std::optional<std::string>>(
      "collate", [&](const std::optional<std::string>& name) { options.collation = CollationOf(name); });
  arguments.TakeAs<std::optional<uint32_t>>(
      "collators", [&](std::optional<uint32_t> most) { options.collators = most.value_or(options.collators); });
  arguments.Take("round_robin", &options.round_robin);
  arguments.Take("in_order", &options.in_order);
  arguments.Take("pin_memory", &options.pin_memory);
  arguments.Take("fence_device", &options.fence_device);
  arguments.Take("cross_epochs", &options.cross_epochs);
  arguments.RequireNoMore();
  return options;
}

}  // namespace headrace::python
