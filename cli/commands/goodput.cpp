#include "cli/commands/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/predict.h"
#include "executor/checkpoint/size.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

constexpr std::int64_t kSimulatedFailures = 200'000;
constexpr double kLongest = 1e12;  // seconds
// Where no flag says them, in seconds: PyTorch's default timeout of NCCL; scheduler, processes and NCCL (assumed).
constexpr double kDetectionSeconds = 600, kRestartSeconds = 300;

double duration(const std::string& text, const std::string& flag) {
  const double seconds = parse_long_time(text, flag).count();
  if (seconds > kLongest) throw InputError(flag, "is more than 30,000 years", "give a shorter time");
  return seconds;
}

double positive(const std::string& text, const std::string& flag) {
  const double seconds = duration(text, flag);
  if (!(seconds > 0)) throw InputError(flag, "must be more than 0", "give such as 30000h");
  return seconds;
}

std::string said(const char* what, const char* flag, bool given, const std::string& otherwise) {
  return fmt::format("{}: {}", what, given ? std::string("as ") + flag + " says" : otherwise);
}

void check_flags(const GoodputFlags& f) {
  if (f.mtbf && f.cluster_mtbf)
    throw InputError("--cluster-mtbf", "has no meaning with --mtbf, which is of one GPU", "give one of them");
  if (f.mtbf || f.cluster_mtbf) {
    if (!f.storage_bandwidth)
      throw InputError("--storage-bandwidth", "is missing",
                       "give what the storage takes from all ranks together, such as 50GB/s");
    if (f.spares.has_value() != f.repair.has_value())
      throw InputError(f.spares ? "--repair-time" : "--spares", "is missing",
                       "give both: spares, and how long what failed is away");
    return;
  }
  for (const auto& [flag, given] : {std::pair{"--save-every", &f.save_every},
                                    {"--storage-bandwidth", &f.storage_bandwidth},
                                    {"--detection-time", &f.detection},
                                    {"--restart-time", &f.restart},
                                    {"--warmup-time", &f.warmup},
                                    {"--spares", &f.spares},
                                    {"--repair-time", &f.repair},
                                    {"--failure-seed", &f.seed}})
    if (given->has_value()) throw InputError(flag, "is about failures, whose rate is not given", "give --mtbf");
  if (f.async_save) throw InputError("--async-save", "is about failures, whose rate is not given", "give --mtbf");
}

// The save itself: either training stands still until all is written, or only while GPUs copy to their hosts.
void add_saving(GoodputAnswer& a, const GoodputFlags& f, const CheckpointSize& size, const ShardingPlan& plan,
                const ClusterSpec& cluster) {
  const BytesPerSecond storage = parse_rate(*f.storage_bandwidth, "--storage-bandwidth");
  if (!(storage.count() > 0)) throw InputError("--storage-bandwidth", "must be more than 0", "give such as 50GB/s");
  const double written = (Bytes(size.bytes) / storage).count();
  const std::int64_t replicas = plan.dialect == Dialect::ddp ? plan.ranks() : plan.replicate();
  a.written = written;
  a.run.load = size.read_bytes / storage.count();
  if (!(a.run.load <= kLongest))
    throw InputError(
        "--storage-bandwidth",
        fmt::format("at this rate, reading a checkpoint of {} takes more than 30,000 years", human(Bytes(size.bytes))),
        "give such as 50GB/s");
  a.assumptions.push_back(
      fmt::format("checkpoint: {} (parameters and optimizer state in {}), written at {} by all ranks together; each of "
                  "{} replica{} reads it at the same rate{}",
                  human(Bytes(size.bytes)), kept_words(plan), human(storage), replicas, replicas == 1 ? "" : "s",
                  plan.own_shard() == 0
                      ? std::string{}
                      : fmt::format(", each of {} what has a mesh of its own", plan.data_ranks() / plan.own_shard())));
  const bool copies = cluster.gpu.host_link.count() > 0;
  if (f.async_save && !copies)
    throw InputError("--async-save", "how fast the ranks of this cluster copy to their hosts is not known",
                     "leave it out");
  const std::int64_t each = size.largest_rank_bytes.value_or((size.bytes + plan.ranks() - 1) / plan.ranks());
  const double copy = copies ? (Bytes(each) / cluster.gpu.host_link).count() : 0;
  const std::string copying =
      copies ? fmt::format("a GPU copies {} to its host at {}", human(Bytes(each)), human(cluster.gpu.host_link)) : "";
  if (f.async_save) {
    a.run.stall = copy;
    a.run.write = written;
    a.assumptions.push_back("saving stops training while " + copying +
                            "; the write then slows nothing, and the next save waits for it");
  } else {
    a.run.stall = std::max(written, copy);
    a.assumptions.push_back("saving stops training until all is written" +
                            (copy > written ? ", and while " + copying + ", which takes longer" : "") +
                            " (--async-save: only while GPUs copy)");
  }
}

}  // namespace

void add_goodput_flags(const Command& app, GoodputFlags& f) {
  app.option("--mtbf", f.mtbf, "a long run too: mean time between failures of one GPU, as 50000h", "TIME");
  app.option("--cluster-mtbf", f.cluster_mtbf, "... or of the whole cluster, as 3h", "TIME");
  app.option("--save-every", f.save_every, "... steps between checkpoints; default: the best", "N");
  app.option("--storage-bandwidth", f.storage_bandwidth, "... of all ranks together, as 50GB/s", "RATE");
  app.flag("--async-save", f.async_save, "... training goes on while a checkpoint is written");
  app.option("--detection-time", f.detection, "... from a failure to the end of the run; default 10min", "TIME");
  app.option("--restart-time", f.restart, "... until ranks load the checkpoint; default 5min", "TIME");
  app.option("--warmup-time", f.warmup, "... compiling and slow first steps after that; default 0s", "TIME");
  app.option("--spares", f.spares, "... machines that replace failed ones; default: always one", "N");
  app.option("--repair-time", f.repair, "... mean time until a failed machine is a spare again", "TIME");
  app.option("--failure-seed", f.seed, "... of the Monte Carlo; default 0", "N");
}

std::optional<GoodputAnswer> apply_goodput_flags(const GoodputFlags& f, const Prediction& p, const ShardingPlan& plan,
                                                 const Setup& setup) {
  check_flags(f);
  if (!f.mtbf && !f.cluster_mtbf) return std::nullopt;
  GoodputAnswer a;
  a.ranks = p.ranks;
  a.async_save = f.async_save;
  a.run.step = mean_step(p).count();
  a.steps = p.step_time_distribution;
  if (p.step_time_distribution)
    a.assumptions.push_back(
        fmt::format("steps: their mean over clusters and steps, {} (--jitter)", human(mean_step(p))));
  a.fits = p.verdict != Verdict::does_not_fit;
  a.run.tokens_per_step = static_cast<double>(p.tokens_per_step);
  a.run.mtbf =
      f.mtbf ? positive(*f.mtbf, "--mtbf") / static_cast<double>(p.ranks) : positive(*f.cluster_mtbf, "--cluster-mtbf");
  a.assumptions.emplace_back(
      "failures: any one ends the run; independent, at a constant rate while the run is up or recovers");
  const CheckpointSize size = checkpoint_size(setup.model, plan);
  a.checkpoint_bytes = size.bytes;
  add_saving(a, f, size, plan, setup.cluster);
  a.run.detection = f.detection ? duration(*f.detection, "--detection-time") : kDetectionSeconds;
  a.assumptions.push_back(
      said("detection", "--detection-time", f.detection.has_value(), "10 min, PyTorch's default timeout of NCCL"));
  a.run.restart = f.restart ? duration(*f.restart, "--restart-time") : kRestartSeconds;
  a.assumptions.push_back(
      said("restart", "--restart-time", f.restart.has_value(), "5 min for scheduler, processes and NCCL (assumed)"));
  a.run.warmup = f.warmup ? duration(*f.warmup, "--warmup-time") : 0;
  a.assumptions.push_back(said("compiling and warm-up", "--warmup-time", f.warmup.has_value(), "none (--warmup-time)"));
  if (f.spares)
    a.run.spares = Spares{parse_count(*f.spares, "--spares", 0, 1'000'000), positive(*f.repair, "--repair-time")};
  a.assumptions.push_back(f.spares ? "spares: each failure takes one; repairs take exponentially distributed times"
                                   : std::string("spares: there is always one (--spares, --repair-time)"));
  if (f.seed) a.seed = static_cast<std::uint64_t>(parse_count(*f.seed, "--failure-seed", 0, INT64_MAX));
  const std::int64_t every =
      f.save_every ? parse_count(*f.save_every, "--save-every", 1, kMostSteps) : best_interval(a.run).best.save_every;
  a.expected = expected_goodput(a.run, every);
  a.simulated = simulated_goodput(a.run, every, kSimulatedFailures, a.seed);
  std::optional<double> waiting;
  if (f.spares) {
    if (!a.simulated)
      throw InputError("--spares", "fewer than one recovery in a hundred succeeds: waiting for spares is not simulated",
                       "leave it out, or see that recovery takes less time");
    waiting = a.simulated->mean.waiting;
  }
  a.goodput = expected_goodput(a.run, every, waiting);
  a.best = best_interval(a.run, waiting);
  const double kept = a.goodput.tokens_per_day(a.run) / kDay.count();  // a second
  if (setup.cluster.price && !(kept > 0)) a.assumptions.push_back("cost: no tokens stay trained, so they have none");
  if (setup.cluster.price && kept > 0) {
    a.cost = training_cost(*setup.cluster.price, p.ranks, kept);
    a.assumptions.push_back(fmt::format("cost: the {} GPUs of the job are paid all the time{}", with_commas(p.ranks),
                                        f.spares ? "; spares are not counted" : ""));
  }
  return a;
}

}  // namespace fsdp::cli
