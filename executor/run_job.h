// One call of run(): what its ranks share and what each has measured. For run*.cpp alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "executor/run.h"
#include "executor/run_interpreter.h"

namespace fsdp {

struct RankJob {
  Program program;
  std::atomic<int> stage{0};  // 0 init, else the number of the step, from 1: what failures are described by
  StepRecord init, first;
  std::vector<StepRecord> steady;  // every one, warm-up included
};

struct RunJob {
  RunJob(const ModelGraph&, const ShardingPlan&, const RunOptions&, std::int64_t rank_count);

  const ModelGraph model;  // copies: a rank that hangs may outlive the call
  const ShardingPlan plan;
  const RunOptions options;
  std::vector<RankJob> ranks;
  std::vector<NamedTensor> parameters, first_gradients;  // each rank fills its own rows

  // Steady steps run: warm-up besides the first step, then the measured ones.
  [[nodiscard]] int warmup() const { return options.warmup_steps > 1 ? options.warmup_steps - 1 : 0; }
  [[nodiscard]] int steady_steps() const { return warmup() + options.steps; }
  void reserve_results();
  void run_rank(Device&);
  // Heap that a kernel took beside its buffers.
  [[nodiscard]] std::int64_t undeclared(const OperationRecord&, const Operation&) const;

 private:
  void train(Interpreter&, RankJob&, std::int64_t rank);
  double after_step(Interpreter&, const RankJob&, int done) const;  // seconds that it took
  void check_step(const StepRecord&, const std::vector<Operation>&, const RankJob&, std::int64_t rank, bool steady) const;
  void keep_parameters(const Interpreter&, const Program&, std::int64_t rank);
  void keep_gradients(const Interpreter&, const Program&, std::int64_t rank);
  void keep_rows(const ShardedParam&, std::int64_t rank, const std::byte* from, std::vector<NamedTensor>& into) const;
  void keep_whole(std::int32_t param, std::int64_t rank, const std::byte* from, std::vector<NamedTensor>& into) const;
  [[nodiscard]] std::int64_t speakers() const;
};

// Where each process has run one rank: brings what all have measured and kept to every one of them (run_processes.cpp). What RankJob
// gains beyond its Program must be sent there too.
void gather_from_processes(RunJob&, Backend&);

// The Measurement of a finished job (run_measure.cpp).
[[nodiscard]] Measurement measure(const RunJob&, const ClusterSpec&, const Backend&);

}  // namespace fsdp
