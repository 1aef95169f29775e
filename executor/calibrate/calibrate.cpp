// Micro-benchmarks -> Costs. Everything is measured in several passes over the whole list, and the best pass counts:
// what disturbs a machine comes and goes, and a benchmark that was disturbed in one pass is not in the next.
#include "executor/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <optional>
#include <vector>

#include "executor/calibrate/ops.h"
#include "executor/calibrate/threads.h"
#include "executor/kernels/host_kernel_set.h"
#include "models/catalog.h"
#include "models/host.h"
#include "models/implementation.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "planner/costs/curve.h"

namespace fsdp {
namespace {

constexpr int kPasses = 3;
constexpr std::int64_t kMostPerCore = 8;  // ranks; the one pass that no budget shortens takes a minute there

// What is measured. Of a machine whose streams are threads, the threads too.
struct Range {
  bool threads = false;
  std::vector<std::int64_t> cube;     // matmuls of n x n x n
  std::int64_t few = 0, wide = 0;     // and of few x wide x wide
  std::vector<std::int64_t> full;     // of collectives: bytes, as nccl-tests counts
  std::int64_t small = 0, large = 0;  // elements
  std::int64_t short_sequence = 0, long_sequence = 0;
  std::int64_t arena_bytes = 0;  // of a rank: address space; only what is written becomes memory
  CaseShape shape;
};
Range host_range() {
  return {true,
          {40, 80, 160, 320, 640, 1000},
          64,
          1024,
          {4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20},
          1 << 15,
          1 << 19,
          64,
          512,
          std::int64_t{1} << 30,
          {.width = 512, .heads = 4, .kv_heads = 2, .head_dim = 64, .vocab = 512}};
}
// 3e7 to 1e12 flops; what is large exceeds the second-level cache (50 to 126 MB from A100 to B200) with what is read
// and written.
Range gpu_range() {
  return {false,
          {256, 512, 1024, 2048, 4096, 8192},
          64,
          8192,
          {1 << 16, 1 << 18, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30},
          1 << 18,
          1 << 25,
          512,
          4096,
          std::int64_t{1} << 33,
          {.width = 2048, .heads = 16, .kv_heads = 8, .head_dim = 128, .vocab = 1 << 15}};
}

struct Benchmark {
  std::string what;
  Setup setup;
  double seconds = std::numeric_limits<double>::infinity();  // best so far
};

class Suite {
 public:
  explicit Suite(std::int64_t arena_bytes) : arena_bytes_(arena_bytes) {}
  std::size_t add(std::string what, Setup setup) {
    benchmarks_.push_back({std::move(what), std::move(setup)});
    return benchmarks_.size() - 1;
  }
  void run(Backend& backend, const CalibrateOptions& options) {
    if (options.clock) return run_by_clock(backend, options);
    const auto begin = std::chrono::steady_clock::now();
    const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    for (int pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = 0; i < benchmarks_.size(); ++i) {
        if (pass > 0 && spent() > options.seconds_budget) return;
        const double left = static_cast<double>((kPasses - pass) * benchmarks_.size() - i);
        const Timer timer{backend, arena_bytes_,
                          0.5 * std::max(0.0, options.seconds_budget - spent()) / left};  // the rest: set-up
        if (options.progress)
          options.progress(fmt::format("pass {} of {}: {}", pass + 1, kPasses, benchmarks_[i].what));
        benchmarks_[i].seconds = std::min(benchmarks_[i].seconds, timer.time(benchmarks_[i].setup));
      }
    }
  }
  [[nodiscard]] double seconds(std::size_t i) const { return benchmarks_[i].seconds; }

 private:
  void run_by_clock(Backend& backend, const CalibrateOptions& options) {
    for (Benchmark& b : benchmarks_) {
      if (options.progress) options.progress(b.what);
      b.seconds = options.clock(b.what, Timer{backend, arena_bytes_}.one_round(b.setup));
    }
  }
  std::int64_t arena_bytes_;
  std::vector<Benchmark> benchmarks_;
};

// --- from seconds to lines ---

// Through two points, small and large; never below the cost of an empty kernel.
KernelRate line(double small_work, double small_seconds, double large_work, double large_seconds, double empty,
                bool flops) {
  const double slope =
      std::max((large_seconds - small_seconds) / (large_work - small_work), large_seconds / large_work * 0.05);
  KernelRate r;
  r.overhead = Seconds(std::max(empty, small_seconds - slope * small_work));
  const double rate =
      large_work / std::max(large_seconds - r.overhead.count(), large_seconds * 0.05);  // exact at the large size
  if (flops) r.flops_rate = FlopsPerSecond(rate);
  else r.byte_rate = BytesPerSecond(rate);
  return r;
}

struct Pair {
  std::size_t small = 0, large = 0;
};

// The host's own time for one launch, into a stream that is busy, so that nobody is woken. Where streams are no
// threads, of a real kernel.
struct LaunchCase {
  Issue busy, small;
};
LaunchCase thread_launches() {
  return {[](Device& device, std::int32_t& op, int) {
            device.launch(op++, Stream::compute, {}, [] {
              const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
              while (std::chrono::steady_clock::now() < until) {
              }
            });
          },
          [](Device& device, std::int32_t& op, int) {
            std::vector<KernelArg> args(8);
            device.launch(op++, Stream::compute, {}, [args = std::move(args)] { static_cast<void>(args.size()); });
          }};
}
LaunchCase kernel_launches(BenchMemory& memory, DType type) {
  constexpr std::int64_t kElements = std::int64_t{1} << 26;  // copied first: longer than the launches take
  return {[copy = copy_setup(kElements, type)(memory)](Device& device, std::int32_t& op, int) {
            for (int i = 0; i < 40; ++i) copy(device, op, i);
          },
          copy_setup(1, type)(memory)};
}

double host_launch_seconds(Backend& backend, DType type, const Range& range) {
  double best = std::numeric_limits<double>::infinity();
  constexpr int kLaunches = 500;
  backend.run([&](Device& device) {
    device.reserve_arena(range.arena_bytes);
    BenchMemory memory(device, backend.implementation());
    const LaunchCase launch = range.threads ? thread_launches() : kernel_launches(memory, type);
    for (int trial = 0; trial < 5 && device.rank() == 0; ++trial) {
      device.begin_step();
      std::int32_t op = 0;
      launch.busy(device, op, 0);
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kLaunches; ++i) launch.small(device, op, i);
      best =
          std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kLaunches);
      device.synchronize();
    }
  });
  return best;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

void check_options(const CalibrateOptions& o) {
  if (o.type != DType::f64 && o.type != DType::f32 && o.type != DType::bf16)
    throw InputError(setting("dtype"), fmt::format("{} has no host kernels", name(o.type)), "use fp64, fp32 or bf16");
  if (!(o.seconds_budget > 0) || o.seconds_budget > 3600)
    throw InputError(setting("budget"), "is not between 0 and 1 h", "give it in seconds, such as 20s");
}

class Calibration {
 public:
  Calibration(const CalibrateOptions& o, Range range, std::string platform, Backend& backend)
      : options_(o), range_(std::move(range)), platform_(std::move(platform)), backend_(backend) {
    empty_ = suite_.add("empty kernel", range_.threads ? empty_setup() : copy_setup(1, o.type));
    add_matmuls();
    add_kernels();
    add_pairs();
    if (o.ranks > 1) add_collectives();
  }

  Costs run() {
    suite_.run(backend_, options_);
    Costs costs;
    costs.platform = platform_;
    costs.source = fmt::format("calibrate --backend {}, {}, {}, {}, {}", backend_.name(),
                               counted(options_.ranks, "rank"), name(options_.type), backend_.environment(), today());
    costs.measured_dtype = options_.type;
    costs.kernel_overhead = Seconds(suite_.seconds(empty_));
    const double launch =
        options_.clock ? options_.clock("launch", {}) : host_launch_seconds(backend_, options_.type, range_);
    costs.host_per_operation = Seconds(range_.threads ? std::min(launch, suite_.seconds(empty_)) : launch);
    if (range_.threads) fill_threads(costs);
    costs.collective_ranks = options_.ranks;
    fill(costs);
    return costs;
  }

 private:
  static constexpr Part kMatmuls[] = {Part::forward, Part::backward_input, Part::backward_weight};
  static constexpr CollectiveKind kCollectives[] = {CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                                    CollectiveKind::all_reduce};

  std::pair<std::int64_t, std::int64_t> sizes(OpKind kind) const {
    return kind == OpKind::attention ? std::pair{range_.short_sequence, range_.long_sequence}
                                     : std::pair{range_.small, range_.large};
  }
  static bool benchmarked(OpKind kind, bool backward) {
    if (kind == OpKind::redistribute || kind == OpKind::cast) return false;  // collectives, copies: measured as such
    if (kind == OpKind::linear || kind == OpKind::expert_linear || kind == OpKind::opaque)
      return false;                                                                              // matmuls have curves
    if (native_implementation().rules[static_cast<std::size_t>(kind)] == nullptr) return false;  // no kernel of ours
    return !(kind == OpKind::add && backward);  // hands its gradient on: no kernel
  }

  void add_matmuls() {
    static constexpr const char* names[] = {"forward", "backward input", "backward weight"};
    for (std::size_t p = 0; p < 3; ++p)
      for (const std::int64_t n : range_.cube)
        matmuls_[p].push_back(suite_.add(fmt::format("linear {} {} x {} x {}", names[p], n, n, n),
                                         kernel_setup(linear_case(n, options_.type), kMatmuls[p], options_.type)));
    for (std::size_t p = 0; p < 3; ++p)
      flat_[p] =
          suite_.add(fmt::format("linear {} {} x {} x {}", names[p], range_.few, range_.wide, range_.wide),
                     kernel_setup(linear_case(range_.wide, options_.type, range_.few), kMatmuls[p], options_.type));
  }

  void add_kernels() {
    kernels_.resize(2 * kOpKinds);
    for (int k = 0; k < kOpKinds; ++k)
      for (const bool backward : {false, true}) {
        const auto kind = static_cast<OpKind>(k);
        if (!benchmarked(kind, backward)) continue;
        const auto [small, large] = sizes(kind);
        const Part part = backward ? Part::backward : Part::forward;
        const std::string what = fmt::format("{} {}", name(kind), backward ? "backward" : "forward");
        kernels_[static_cast<std::size_t>(2 * k + (backward ? 1 : 0))] = {
            suite_.add(what, kernel_setup(op_case(kind, small, options_.type, range_.shape), part, options_.type)),
            suite_.add(what, kernel_setup(op_case(kind, large, options_.type, range_.shape), part, options_.type))};
      }
  }

  void add_pairs() {
    const DType t = options_.type;
    copy_ = {suite_.add("copy", copy_setup(range_.small, t)), suite_.add("copy", copy_setup(range_.large, t))};
    cast_ = {suite_.add("cast", cast_setup(range_.small, t)), suite_.add("cast", cast_setup(range_.large, t))};
    optimizer_ = {suite_.add("adamw", optimizer_setup(range_.small, t)),
                  suite_.add("adamw", optimizer_setup(range_.large, t))};
    norm_ = {suite_.add("norm", norm_setup(range_.small, t)), suite_.add("norm", norm_setup(range_.large, t))};
  }

  void add_collectives() {
    static constexpr const char* names[] = {"all_gather", "reduce_scatter", "all_reduce"};
    for (std::size_t c = 0; c < 3; ++c)
      for (const std::int64_t bytes : range_.full)
        collectives_[c].push_back(suite_.add(fmt::format("{} {} KiB", names[c], bytes / 1024),
                                             collective_setup(kCollectives[c], bytes, options_.type, options_.ranks)));
  }

  KernelRate pair_line(const Pair& p, double small_work, double large_work, bool flops = false) const {
    return line(small_work, suite_.seconds(p.small), large_work, suite_.seconds(p.large), suite_.seconds(empty_),
                flops);
  }

  // Attention is bound by arithmetic, everything else by the bytes that OpFacts counts.
  KernelRate kernel_line(OpKind kind, bool backward, const Pair& p) const {
    const auto work = [&](std::int64_t size) {
      const OpCase c = op_case(kind, size, options_.type, range_.shape);
      if (kind == OpKind::attention) return backward ? backward_flops(c.op, c.work) : forward_flops(c.op, c.work);
      const OpFacts f = facts(backend_.implementation(), c.op, c.work);
      return static_cast<double>(backward ? f.backward_traffic_bytes : f.forward_traffic_bytes);
    };
    const auto [small, large] = sizes(kind);
    return pair_line(p, work(small), work(large), kind == OpKind::attention);
  }

  void fill_threads(Costs& costs) const {
    ThreadCosts t;
    if (options_.clock) {
      const auto said = [&](const char* what) { return options_.clock(what, {}); };
      t = {said("wake"), said("wake_beside"), said("collective_beside"),
           said("skew"), said("skew_share"),  said("skew_most")};
    } else {
      if (options_.progress) options_.progress("threads: waking, and waiting for the slowest rank");
      t = time_threads(backend_, options_.type, 0.2 * options_.seconds_budget);
    }
    costs.threads = HostThreads{.cores = load_cluster("host").gpus,
                                .wake = Seconds(t.wake),
                                .wake_beside = Seconds(t.wake_beside),
                                .collective_beside = Seconds(t.collective_beside),
                                .skew = Seconds(t.skew),
                                .skew_most = Seconds(t.skew_most),
                                .skew_share = t.skew_share};
  }

  // See Costs::matmul_beyond_cube. Less than a twentieth beside what the cubes say is noise.
  void fill_beyond_cubes(Costs& costs) const {
    const auto few = static_cast<double>(range_.few), wide = static_cast<double>(range_.wide),
               flops = 2 * few * wide * wide;
    const double beyond =
        static_cast<double>(size_of(options_.type)) * (2 * few * wide + wide * wide - 3 * std::pow(flops / 2, 2.0 / 3));
    for (std::size_t p = 0; p < 3; ++p) {
      const double cube = interpolate(costs.matmul_curve[p], flops), more = suite_.seconds(flat_[p]) - cube;
      if (more > 0.05 * cube) costs.matmul_beyond_cube[p] = BytesPerSecond(beyond / more);
    }
  }

  void fill(Costs& costs) const {
    for (std::size_t p = 0; p < 3; ++p)
      for (std::size_t i = 0; i < range_.cube.size(); ++i)
        costs.matmul_curve[p].push_back(
            {2.0 * std::pow(static_cast<double>(range_.cube[i]), 3), suite_.seconds(matmuls_[p][i])});
    fill_beyond_cubes(costs);
    costs.kernels.resize(2 * kOpKinds);
    for (int k = 0; k < kOpKinds; ++k)
      for (const bool backward : {false, true})
        if (const auto kind = static_cast<OpKind>(k); benchmarked(kind, backward)) {
          const auto i = static_cast<std::size_t>(2 * k + (backward ? 1 : 0));
          costs.kernels[i] = kernel_line(kind, backward, kernels_[i]);
        }
    const auto bytes = [&](std::int64_t n, double passes) {
      return passes * static_cast<double>(n * size_of(options_.type));
    };
    costs.copy = pair_line(copy_, bytes(range_.small, 2), bytes(range_.large, 2));
    costs.cast = pair_line(cast_, static_cast<double>(cast_bytes(range_.small, options_.type)),
                           static_cast<double>(cast_bytes(range_.large, options_.type)));
    costs.optimizer =
        pair_line(optimizer_, bytes(range_.small, 7), bytes(range_.large, 7));  // reads p, g, m, v; writes p, m, v
    costs.norm = pair_line(norm_, bytes(range_.small, 1.5),
                           bytes(range_.large, 1.5));  // in turns 1 pass that reads, 2 that scale
    if (options_.ranks < 2) return;
    std::vector<CurvePoint>* curves[] = {&costs.all_gather, &costs.reduce_scatter, &costs.all_reduce};
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t i = 0; i < range_.full.size(); ++i) {
        const double seconds = suite_.seconds(collectives_[c][i]);
        curves[c]->push_back(
            {static_cast<double>(range_.full[i]), std::max(seconds - suite_.seconds(empty_), seconds * 0.1)});
      }
  }

  const CalibrateOptions options_;
  const Range range_;
  const std::string platform_;
  Backend& backend_;
  Suite suite_{range_.arena_bytes};
  std::size_t empty_ = 0;
  std::vector<std::size_t> matmuls_[3], collectives_[3];
  std::size_t flat_[3] = {};
  std::vector<Pair> kernels_;
  Pair copy_, cast_, optimizer_, norm_;
};

}  // namespace

Costs calibrate_host(const CalibrateOptions& options) {
  check_options(options);
  if (const std::int64_t most = kMostPerCore * usable_cores(); options.ranks > most)
    throw InputError(setting("ranks"),
                     fmt::format("{} on {} would take turns for longer than a budget can bound", options.ranks,
                                 counted(usable_cores(), "core")),
                     fmt::format("give at most {}, {} per core", most, kMostPerCore));
  const auto backend = make_host_backend({1, options.ranks});
  return Calibration(options, host_range(), "host", *backend).run();
}

Costs calibrate_gpu(const CalibrateOptions& options, const std::string& platform, Backend& backend) {
  check_options(options);
  if (backend.ranks() != options.ranks)
    throw InputError(setting("ranks"), fmt::format("is {}, the backend has {}", options.ranks, backend.ranks()),
                     "make both the same");
  return Calibration(options, gpu_range(), platform, backend).run();
}

}  // namespace fsdp
