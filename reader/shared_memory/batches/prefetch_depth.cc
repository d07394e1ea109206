#include "reader/shared_memory/batches/prefetch_depth.h"

#include <algorithm>
#include <limits>

namespace headrace::shared_memory {
namespace {

// The one that the consumer waits for and the next.
constexpr uint32_t kLeast = 2;
constexpr uint32_t kPatience = 8;
constexpr uint32_t kMostPatience = 1024;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// Before anything is known: work for each producer, and the next batch.
uint32_t FirstDepth(const SchedulerOptions& options) {
  const bool one_claim =
      options.collation == Collation::kWhole || options.arena.order == IndexOrder::kStream || options.round_robin;
  const uint64_t claims = one_claim ? 1 : options.batch_size;
  const uint64_t batches = (options.producers + claims - 1) / claims + 1;
  return static_cast<uint32_t>(std::clamp<uint64_t>(batches, kLeast, std::max(kLeast, options.prefetch)));
}

}  // namespace

PrefetchDepth::PrefetchDepth(const SchedulerOptions& options)
    : limit_(options.prefetch),
      unlimited_bytes_(options.prefetch_bytes),
      adapts_(options.prefetch > kLeast && options.prefetch_bytes != kAnyBytes),
      depth_(FirstDepth(options)),
      patience_(kPatience),
      least_spare_(kNone) {}

bool PrefetchDepth::Grow(uint32_t idle, uint32_t chunks) {
  taken_ = 0;
  least_spare_ = kNone;
  if (!adapts_ || depth_ == limit_) {
    return false;
  }
  if (shrunk_) {
    shrunk_ = false;
    patience_ = std::min(2 * patience_, kMostPatience);
  }
  // After the start, and whenever the consumer is too fast for a while, at once as many as there is work for.
  depth_ += std::min(limit_ - depth_, (idle + chunks - 1) / std::max(chunks, 1U));
  return true;
}

bool PrefetchDepth::Taken(uint64_t bytes, uint32_t spare) {
  adapts_ = unlimited_bytes_ != kAnyBytes && limit_ > kLeast && bytes > unlimited_bytes_ / limit_;
  if (!adapts_) {
    return false;
  }
  least_spare_ = std::min(least_spare_, spare);
  if (++taken_ < patience_) {
    return false;
  }
  if (least_spare_ > 1) {
    depth_ -= std::min(depth_ - kLeast, least_spare_ - 1);
    shrunk_ = true;
  }
  taken_ = 0;
  least_spare_ = kNone;
  return true;
}

}  // namespace headrace::shared_memory
