// The sizes that flags, plans, models and clusters may hold: a file holds no more than the flag beside it. Records,
// costs and published runs have bounds of their own.
//
//   const std::int64_t layers = config.integer("n_layer", 1, kMaxLayers);
//   if (!kSeqLen.holds(plan.seq_len)) throw InputError(...)                 // cli: parse_count(text, kSeqLen)
//
// What keeps products inside 64 bits: `check` (planner/plan.h) bounds the elements of a micro-batch and of a model's
// padded shards by kMostElements. An element has at most 8 bytes, and the largest factor of any rule in
// models/implementations/ is 100 bytes per element: 2^52 * 100 < 2^59. Products that grow with the square of a sequence
// (attention scores) are checked where they are made. Lowering bounds the bytes of a micro-batch by
// kMostMicroBatchBytes, so that no sum over live buffers overflows.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp {

// A whole number that a flag sets and a file may hold.
struct Limit {
  std::string_view field;  // as rooms name it; cli/field_flags has its flag
  std::int64_t least, most;
  [[nodiscard]] constexpr bool holds(std::int64_t value) const { return value >= least && value <= most; }
};

inline constexpr Limit kSeqLen{"seq_len", 1, std::int64_t{1} << 24};  // tokens of a sequence
inline constexpr Limit kMicroBatch{"micro_batch", 1, 65'536};         // sequences of a micro-batch
inline constexpr Limit kGradAccum{"grad_accum", 1, 4096};             // micro-batches of a step
inline constexpr Limit kGpus{"gpus", 1, std::int64_t{1} << 20};
inline constexpr Limit kReplicate{"replicate", 1, kGpus.most};
inline constexpr Limit kForwardPrefetch{"forward_prefetch", 0, 1024};  // units ahead
inline constexpr Limit kBackwardPrefetch{"backward_prefetch", 0, 1024};
inline constexpr Limit kHostThreads{"host_threads", 1, 1024};  // of a rank
inline constexpr Limit kLossChunks{"loss_chunks", 1, 65'536};

// Of an optimizer's learning rate, which is above 0, and its weight decay.
inline constexpr double kMostOfOptimizer = 1e6;

// Of a model's configuration.
inline constexpr std::int64_t kMaxLayers = 10'000, kMaxWidth = std::int64_t{1} << 24, kMaxHeads = 65'536;
inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 31, kMaxPositions = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxExperts = 65'536;

// Of a cluster file.
inline constexpr std::int64_t kMaxGpusPerNode = 1024;
inline constexpr std::int64_t kMaxGpuBytes = std::int64_t{1} << 50;

// Of a job.
inline constexpr std::int64_t kMostTokensAtOnce = std::int64_t{1} << 28;   // of a micro-batch, per rank
inline constexpr std::int64_t kMostTokensPerRank = std::int64_t{1} << 36;  // of a step
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 48;
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 52;  // of a micro-batch; of all padded shards
inline constexpr std::int64_t kMostOpBytes = std::int64_t{1} << 60;   // saved, scratch or traffic of one operation
inline constexpr std::int64_t kMostMicroBatchBytes = std::int64_t{1} << 55;  // of what its operations make

}  // namespace fsdp
