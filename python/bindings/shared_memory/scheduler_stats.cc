#include "python/bindings/shared_memory/scheduler_stats.h"

#include <cstdint>
#include <string>

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::ProducerStats;
using shared_memory::SchedulerStats;
using shared_memory::TraceEvent;
using shared_memory::TraceKind;

double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

void AddFigures(const ProducerStats& stats, const std::string& prefix, py::dict& out) {
  out["samples"] = stats.samples;
  out["claims"] = stats.claims;
  out[py::str(prefix + "busy_s")] = Seconds(stats.work_ns);
  out[py::str(prefix + "wait_s")] = Seconds(stats.wait_ns);
  out["dataset_s"] = Seconds(stats.dataset_ns);
  out["collate_s"] = Seconds(stats.collate_ns);
  out["copy_s"] = Seconds(stats.copy_ns);
}

const char* NameOf(TraceKind kind) {
  switch (kind) {
    case TraceKind::kRows:
      return "rows";
    case TraceKind::kWhole:
      return "whole";
    case TraceKind::kItems:
      return "items";
    case TraceKind::kCollate:
      return "collate";
    case TraceKind::kStream:
      return "stream";
    case TraceKind::kOpened:
      return "opened";
    case TraceKind::kReady:
      return "ready";
    case TraceKind::kTaken:
      return "taken";
    case TraceKind::kReleased:
      return "released";
    case TraceKind::kWait:
      break;
  }
  return "wait";
}

}  // namespace

py::dict StatsDict(const SchedulerStats& stats) {
  py::dict result;
  result["elapsed_s"] = Seconds(stats.elapsed_ns);
  result["batches"] = stats.batches;
  result["bytes"] = stats.bytes;
  result["consumer_wait_s"] = Seconds(stats.wait_ns);
  result["waits"] = stats.waits;
  result["prefetch"] = stats.prefetch;
  result["open_batches"] = stats.open_batches;
  result["ready_batches"] = stats.ready_batches;
  result["held_slots"] = stats.held_slots;
  result["slots_used"] = stats.slots_used;
  result["resident_bytes"] = stats.resident_bytes;
  result["pinned_bytes"] = stats.pinned_bytes;
  AddFigures(stats.all, "worker_", result);
  py::list producers;
  for (const ProducerStats& producer : stats.producers) {
    py::dict figures;
    AddFigures(producer, "", figures);
    producers.append(figures);
  }
  result["producers"] = producers;
  return result;
}

py::list TraceList(const std::vector<TraceEvent>& events) {
  py::list list;
  for (const TraceEvent& event : events) {
    const int64_t producer = event.producer == TraceEvent::kScheduler ? -1 : static_cast<int64_t>(event.producer);
    list.append(py::make_tuple(NameOf(event.kind), producer, event.begin_ns, event.end_ns, event.epoch, event.batch,
                               event.slot, event.begin_row, event.end_row, event.stream));
  }
  return list;
}

}  // namespace headrace::python
