// One call of run(): what its ranks share and what each has measured. For training/ alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/run.h"
#include "executor/training/interpreter.h"
#include "executor/training/machine.h"
#include "executor/training/step_log.h"
#include "planner/tensor/parts.h"

namespace fsdp {

struct RankJob {
  Program program;
  std::atomic<int> stage{0};  // 0 init, else the number of the step, from 1: what failures are described by
  StepRecord init, first;
  StepLog steady;  // warm-up included
  // The same on every rank, once it has trained: of each steady step the time of the slowest rank, how many of them are
  // warm-up, and why there are no more.
  std::vector<double> slowest;
  std::size_t measured_from = 0;
  std::string stopped;
  std::optional<EarlyStop> early_stop;
  std::int64_t undeclared_bytes = 0;  // most that any operation took
  const std::byte *arena = nullptr, *host_arena = nullptr;
  std::int64_t arena_resident_bytes = 0;  // at the end
  double process_seconds = 0;             // of processor time: its whole process, if it is the first rank there
};

struct RunJob {
  RunJob(const ModelGraph&, const ShardingPlan&, const RunOptions&, const Backend&);

  const ModelGraph model;  // copies: a rank that hangs may outlive the call
  const ShardingPlan plan;
  const RunOptions options;
  std::vector<RankJob> ranks;
  std::vector<NamedTensor> parameters, first_gradients;  // each rank fills its own rows
  const std::vector<std::int64_t> local_ranks;           // of this process
  const std::vector<TensorPart> parts;                   // by parameter
  ProcessMemory memory;                                  // of this process at the end
  const MachineWatch watch;

  // Steady steps run: warm-up besides the first step, then the measured ones (at most).
  [[nodiscard]] int warmup() const { return options.warmup_steps > 1 ? options.warmup_steps - 1 : 0; }
  [[nodiscard]] int steady_steps() const { return warmup() + options.steps; }
  void reserve_results();
  void run_rank(Device&);
  // Heap that a kernel took beside its buffers.
  [[nodiscard]] std::int64_t undeclared(const OperationRecord&, const Operation&) const;

 private:
  void check_same_plan(Device&) const;
  void train(Interpreter&, RankJob&, std::int64_t rank);
  [[nodiscard]] bool finished(Device&, RankJob&) const;
  void agree_on_stop(Device&, RankJob&, int done) const;
  void share_times(Device&, RankJob&) const;
  void account();
  void check_loss(double loss, std::int64_t rank, int done) const;
  void after_step(Interpreter&, const RankJob&, int done) const;
  void check_step(const StepRecord&, const std::vector<Operation>&, RankJob&, std::int64_t rank, bool steady) const;
  void keep_parameters(Interpreter&, const Program&, std::int64_t rank);
  void keep_gradients(Interpreter&, const Program&, std::int64_t rank);
  void keep_rows(const UnitLayout&, const ShardedParam&, std::int64_t rank, const std::byte* from,
                 std::vector<NamedTensor>& into) const;
  void keep_flat(const UnitLayout&, std::int64_t rank, const std::byte* shard, std::vector<NamedTensor>& into) const;
  void keep_whole(std::int32_t param, std::int64_t rank, const std::byte* from, std::vector<NamedTensor>& into) const;
  [[nodiscard]] bool reports(const UnitLayout&, std::int64_t rank, std::int32_t param) const;
};

// Where each process has run one rank: brings what all have measured and kept to every one of them
// (gather_results.cpp). What RankJob gains beyond its Program must be sent there too.
void gather_from_processes(RunJob&, Backend&);

// The Measurement of a finished job (measure.cpp).
[[nodiscard]] Measurement measure(const RunJob&, const ClusterSpec&, const Backend&);

}  // namespace fsdp
