#include "reader/shared_memory/batches/sample_cost.h"

#include <algorithm>

namespace headrace::shared_memory {
namespace {

// A claim should be worth its cost (a few hundred nanoseconds; in Python a few microseconds), and short enough for the
// producers to finish a batch together.
constexpr double kLeastClaimNs = 50'000;
constexpr double kClaimNs = 1'000'000;
// The records live in the producers' caches; reading them for every batch would cost more than it is worth.
constexpr uint64_t kMeasureEveryNs = 1'000'000;

}  // namespace

void SampleCost::Measure(const ProducerRecord* records, uint32_t end, uint64_t now_ns) {
  if (sample_ns_ != 0 && now_ns < measured_ns_ + kMeasureEveryNs) {
    return;
  }
  measured_ns_ = now_ns;
  uint64_t work_ns = 0;
  uint64_t collate_ns =
      0;  // counted before the claim ends, work_ns only at its end, so this may be larger for a moment
  uint64_t samples = 0;
  for (uint32_t i = 0; i < end; ++i) {
    work_ns += records[i].work_ns.load(std::memory_order_relaxed);
    collate_ns += records[i].collate_ns.load(std::memory_order_relaxed);
    samples += records[i].samples.load(std::memory_order_relaxed);
  }
  work_ns -= std::min(work_ns, collate_ns);
  if (samples > samples_ && work_ns > work_ns_) {
    const double recent = static_cast<double>(work_ns - work_ns_) / static_cast<double>(samples - samples_);
    sample_ns_ = sample_ns_ == 0 ? recent : 0.75 * sample_ns_ + 0.25 * recent;
    work_ns_ = work_ns;
    samples_ = samples;
  }
}

uint32_t SampleCost::ChunkRows(ClaimKind kind, uint64_t rows) const {
  if (MakesBatch(kind)) {
    return static_cast<uint32_t>(rows);
  }
  // Two claims per producer among the open batches.
  const double share_ns = sample_ns_ * static_cast<double>(rows) * options_.prefetch / (2.0 * std::max(producers_, 1U));
  const double claim_ns = std::clamp(share_ns, kLeastClaimNs, kClaimNs);
  // Before the first sample: one row at a time, so that all producers work on the first batch.
  uint64_t chunk = sample_ns_ == 0 ? 1 : static_cast<uint64_t>(std::min(claim_ns / sample_ns_, 2e9));
  const uint64_t max_chunks = kind == ClaimKind::kItems ? kMaxChunks - 1 : kMaxChunks;
  chunk = std::max(chunk, (rows + max_chunks - 1) / max_chunks);
  return static_cast<uint32_t>(std::clamp<uint64_t>(chunk, 1, rows));
}

}  // namespace headrace::shared_memory
