// A Program's allocations through the allocator model: what goes in, when blocks come back, what is reported.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "simulator/allocator/replay.h"
#include "simulator/engine/memory.h"
#include "tests/support/small_models.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

constexpr std::int64_t kMiB = 1024 * 1024;

// A program written by hand: operations with what they allocate and free.
class Hand {
 public:
  std::int32_t buffer(std::int64_t bytes, Stream pool = Stream::compute, std::uint8_t recorded = 0) {
    Buffer b;
    b.bytes = bytes;
    b.kind = BufferKind::activation;
    b.pool = pool;
    b.recorded_streams = recorded;
    program.buffers.push_back(b);
    return static_cast<std::int32_t>(program.buffers.size()) - 1;
  }
  static void op(Step& step, Stream stream, const std::vector<std::int32_t>& allocs,
                 const std::vector<std::int32_t>& frees) {
    Operation o;
    o.action = Action::forward;
    o.stream = stream;
    o.allocs = {static_cast<std::uint32_t>(step.allocs.size()), static_cast<std::uint32_t>(allocs.size())};
    o.frees = {static_cast<std::uint32_t>(step.frees.size()), static_cast<std::uint32_t>(frees.size())};
    step.allocs.insert(step.allocs.end(), allocs.begin(), allocs.end());
    step.frees.insert(step.frees.end(), frees.begin(), frees.end());
    step.ops.push_back(o);
  }
  Program program;
};

}  // namespace

TEST_CASE("init, the first step and steady steps are replayed; the highest reserved is named") {
  Hand h;
  const auto weights = h.buffer(30 * kMiB), states = h.buffer(60 * kMiB), activation = h.buffer(12 * kMiB),
             scratch = h.buffer(11 * kMiB);
  const auto nothing = h.buffer(0), pinned = h.buffer(500 * kMiB);
  h.program.buffers[static_cast<std::size_t>(pinned)].host = true;
  Hand::op(h.program.init, Stream::compute, {weights, nothing, pinned}, {});
  Hand::op(h.program.first_step, Stream::compute, {activation}, {activation});
  Hand::op(h.program.first_step, Stream::compute, {states}, {});
  Hand::op(h.program.steady_step, Stream::compute, {activation}, {activation});
  Hand::op(h.program.steady_step, Stream::compute, {scratch}, {scratch});
  const AllocatorPrediction p = replay_allocator(h.program);
  // 30 + 12 + 60 in segments of their own. scratch fits into the activation's segment of 12: 1 MiB is left, which is
  // not more than 1 MiB, so the block of 12 serves it whole. Pinned memory is not the device's.
  CHECK(p.peak_reserved == 102 * kMiB);
  CHECK(p.peak_allocated == 102 * kMiB);  // 90 + 12, in the steady step
  CHECK(p.peak_requested == 102 * kMiB);
  CHECK(p.peak_active == 102 * kMiB);
  CHECK(p.at == AllocatorPlace{1, 1});
  CHECK(p.allocated == 90 * kMiB);  // there the activation's block was free, and whole
  CHECK(p.inactive_split == 0);
  CHECK(p.segments == 3);
  CHECK_FALSE(p.out_of_memory);
  // The first steady step ends as it began: the others would repeat it.
  CHECK(p.steady_steps_replayed == 1);
}

TEST_CASE("fixed allocations come first, from the pool of their stream") {
  Hand h;
  const auto weights = h.buffer(30 * kMiB);
  Hand::op(h.program.init, Stream::compute, {weights}, {});
  const std::array fixed = {FixedAllocation{32 * kMiB, Stream::compute}, FixedAllocation{100, Stream::all_gather},
                            FixedAllocation{0, Stream::compute}};
  ReplayOptions options;
  options.fixed = fixed;
  const AllocatorPrediction p = replay_allocator(h.program, options);
  CHECK(p.peak_reserved == (32 + 2 + 30) * kMiB);
  CHECK(p.peak_requested == (32 + 30) * kMiB + 100);
  options.settings.capacity = 33 * kMiB;  // 32 and 2 are too much already
  const AllocatorPrediction none = replay_allocator(h.program, options);
  CHECK(none.out_of_memory);
  CHECK(none.failed == AllocatorPlace{0});
  CHECK(none.failure.bytes == 100);
}

namespace {

// Two units gathered one after the other into 40 MiB each, used by the compute stream and freed by the host at once.
//   op 0  all_gather   allocates A        issued  1   runs 1 .. 3
//   op 1  compute                         issued  2   runs 3 .. `end`    frees A, recorded on compute
//   op 2  all_gather   allocates B        issued 10   runs 10 .. 12
//   op 3  compute                         issued 11   runs 12 .. 13      frees B, recorded on compute
Program two_gathers(Timeline& timeline, double end) {
  Hand h;
  const auto compute_mark = static_cast<std::uint8_t>(1u << static_cast<unsigned>(Stream::compute));
  const auto a = h.buffer(40 * kMiB, Stream::all_gather, compute_mark),
             b = h.buffer(40 * kMiB, Stream::all_gather, compute_mark);
  Hand::op(h.program.init, Stream::compute, {}, {});
  for (Step* step : {&h.program.first_step, &h.program.steady_step}) {
    Hand::op(*step, Stream::all_gather, {a}, {});
    Hand::op(*step, Stream::compute, {}, {a});
    Hand::op(*step, Stream::all_gather, {b}, {});
    Hand::op(*step, Stream::compute, {}, {b});
  }
  timeline.spans = {{1, 3}, {3, end}, {10, 12}, {12, 13}};
  timeline.issued = {1, 2, 10, 11};
  timeline.duration = 20;
  return h.program;
}

}  // namespace

TEST_CASE("a buffer with recorded streams comes back when their last operation before the free has ended") {
  const auto reserved = [](double end) {
    Timeline timeline;
    const Program program = two_gathers(timeline, end);
    ReplayOptions options;
    options.first_step = options.steady_step = &timeline;
    const AllocatorPrediction p = replay_allocator(program, options);
    CHECK(p.peak_allocated == 40 * kMiB);
    CHECK(p.peak_active == p.peak_reserved);
    CHECK(p.steady_steps_replayed == 1);  // what waits at the end of a step waits equally long in the next
    return p.peak_reserved;
  };
  CHECK(reserved(9.5) == 40 * kMiB);  // B is allocated at 10: A's block is free again
  CHECK(reserved(10) == 40 * kMiB);
  CHECK(reserved(10.5) == 80 * kMiB);
}

// What NCCL's backend marked (fsdp1@1.13): a copy that a collective of its own stream reads, freed while that runs.
TEST_CASE("a buffer marked for its own pool's stream waits for what was issued there before the free") {
  const auto reserved = [](double end, bool marked) {
    Hand h;
    const auto mark = static_cast<std::uint8_t>(marked ? 1u << static_cast<unsigned>(Stream::reduce_scatter) : 0);
    const auto a = h.buffer(40 * kMiB, Stream::reduce_scatter, mark),
               b = h.buffer(40 * kMiB, Stream::reduce_scatter, mark);
    for (Step* step : {&h.program.first_step, &h.program.steady_step}) {
      Hand::op(*step, Stream::reduce_scatter, {a}, {a});
      Hand::op(*step, Stream::reduce_scatter, {b}, {b});
    }
    Timeline timeline;
    timeline.spans = {{1, end}, {end, end + 1}};
    timeline.issued = {1, 10};
    timeline.duration = 40;
    ReplayOptions options;
    options.first_step = options.steady_step = &timeline;
    return replay_allocator(h.program, options).peak_reserved;
  };
  CHECK(reserved(9, true) == 40 * kMiB);   // B is allocated at 10
  CHECK(reserved(11, true) == 80 * kMiB);  // A's collective still runs
  CHECK(reserved(11, false) == 40 * kMiB);
}

TEST_CASE("a step's waiting buffers reach into the next one") {
  // The host issues the next step's first gather at 1 - the step's start. If B's last use ends at 25, 5 into the next
  // step, A cannot have its block; A's own block of the step before has long come back.
  Timeline timeline;
  const Program program = two_gathers(timeline, 9);
  timeline.spans[3].end = 25;
  ReplayOptions options;
  options.first_step = options.steady_step = &timeline;
  CHECK(replay_allocator(program, options).peak_reserved == 80 * kMiB);
}

TEST_CASE("without times recorded buffers are held until the step has ended") {
  Timeline timeline;
  const Program program = two_gathers(timeline, 9);
  CHECK(replay_allocator(program).peak_reserved == 80 * kMiB);
  // Times of the steady step only: the first step holds both.
  ReplayOptions options;
  options.steady_step = &timeline;
  CHECK(replay_allocator(program, options).peak_reserved == 80 * kMiB);
  CHECK(replay_allocator(program, options).at == AllocatorPlace{1, 2});
}

TEST_CASE("a limit: retries of every step, then out of memory with its place") {
  Hand h;
  const auto weights = h.buffer(30 * kMiB), x = h.buffer(50 * kMiB), y = h.buffer(70 * kMiB);
  Hand::op(h.program.init, Stream::compute, {weights}, {});
  for (Step* step : {&h.program.first_step, &h.program.steady_step}) {
    Hand::op(*step, Stream::compute, {x}, {x});
    Hand::op(*step, Stream::all_gather, {}, {});
    Hand::op(*step, Stream::compute, {y}, {y});
  }
  // x and y come from different pools: 30 + 50 + 70 = 150 without a limit. With 110 each step has to give one back for
  // the other.
  h.program.buffers[static_cast<std::size_t>(y)].pool = Stream::all_gather;
  CHECK(replay_allocator(h.program).peak_reserved == 150 * kMiB);
  ReplayOptions options;
  options.settings.capacity = 110 * kMiB;
  const AllocatorPrediction tight = replay_allocator(h.program, options);
  CHECK(tight.peak_reserved == 100 * kMiB);
  CHECK(tight.retries_per_step == 2);  // x displaces y, y displaces x
  CHECK(tight.retries == 1 + 3 * 2);   // the first step has only x to give back
  CHECK_FALSE(tight.out_of_memory);
  options.settings.capacity = 99 * kMiB;
  const AllocatorPrediction full = replay_allocator(h.program, options);
  CHECK(full.out_of_memory);
  CHECK(full.failed == AllocatorPlace{1, 2});
  CHECK(full.failure.bytes == 70 * kMiB);
  CHECK(full.failure.allocated == 30 * kMiB);
  CHECK(full.steady_steps_replayed == 0);
}

TEST_CASE("a program that frees what is not live is refused") {
  Hand h;
  const auto x = h.buffer(100);
  Hand::op(h.program.init, Stream::compute, {x}, {x});
  Hand::op(h.program.first_step, Stream::compute, {}, {x});
  CHECK_THROWS_AS((void)replay_allocator(h.program), InternalError);
  Hand twice;
  const auto y = twice.buffer(100);
  Hand::op(twice.program.init, Stream::compute, {y, y}, {});
  CHECK_THROWS_AS((void)replay_allocator(twice.program), InternalError);
}

TEST_CASE("FSDP2 holds one tensor per parameter where the program has a buffer per unit") {
  // A block of the toy: up [10, 6] and down [6, 10] in fp32 on 4 ranks. Padded shards: 3 rows * 6 and 2 rows * 10
  // elements; rank 3 of `up` has rows 9 .. 10: one row, and of `down` rows 6 .. 6: none. Optimizer states are of the
  // rows themselves.
  const ModelGraph m = toy::model();
  const ShardingPlan plan = toy::plan(m, 4);
  Program program = lower(m, plan, find_implementation("torchtitan", false, "test"), 3);
  int shards = 0, states = 0;
  for (const Buffer& b : program.buffers) {
    if (b.unit != 0) continue;
    if (b.kind == BufferKind::parameter_shard) {
      ++shards;
      CHECK(tensors_of(b, program) == std::vector<std::int64_t>{3 * 6 * 4, 2 * 10 * 4});
    } else if (b.kind == BufferKind::optimizer_state) {
      ++states;
      CHECK(tensors_of(b, program) == std::vector<std::int64_t>{1 * 6 * 4, 0});
    } else {
      CHECK(tensors_of(b, program) == std::vector<std::int64_t>{b.bytes});
    }
  }
  CHECK(shards == 1);
  CHECK(states == 2);
}

TEST_CASE(
    "FSDP1 holds one flat tensor per unit, and optimizer states per parameter where the optimizer sees the "
    "parameters") {
  // The same block in bf16: `up` takes elements 0 .. 60, `down` begins at the next multiple of 16 bytes, 64, and ends
  // at 124, a multiple of 4 ranks. Rank 1 holds 31 .. 62, all but two elements of it of `up`, rank 2 62 .. 93: 29
  // elements of `down` behind padding.
  const ModelGraph m = toy::model();
  ShardingPlan plan = toy::plan(m, 4);
  plan.dialect = Dialect::fsdp1;
  plan.param_dtype = DType::bf16;
  const auto tensors = [&](BufferKind kind, std::int64_t rank) {
    const Program program = lower(m, plan, find_implementation("torchtitan", false, "test"), rank);
    for (const Buffer& b : program.buffers)
      if (b.unit == 0 && b.kind == kind) return tensors_of(b, program);
    return std::vector<std::int64_t>{};
  };
  CHECK(tensors(BufferKind::parameter_shard, 1) == std::vector<std::int64_t>{31 * 4});
  CHECK(tensors(BufferKind::optimizer_state, 1) == std::vector<std::int64_t>{29 * 4, 0});
  CHECK(tensors(BufferKind::optimizer_state, 2) == std::vector<std::int64_t>{0, 29 * 4});
  plan.use_orig_params = false;  // 120 elements, none between the parameters: rank 1 holds 30 .. 60
  CHECK(tensors(BufferKind::optimizer_state, 1) == std::vector<std::int64_t>{30 * 4});
}

namespace {

// The same, without places, times, or stopping early.
AllocatorStats replay_plainly(const Program& program, const AllocatorSettings& settings, int steady_steps) {
  CachingAllocator a(settings);
  std::vector<std::vector<CachingAllocator::Handle>> live(program.buffers.size());
  const auto run = [&](const Step& step) {
    for (const Operation& op : step.ops) {
      const auto allocate = [&](std::int32_t b) {
        for (const std::int64_t bytes : tensors_of(program.buffers[static_cast<std::size_t>(b)], program))
          if (bytes > 0)
            live[static_cast<std::size_t>(b)].push_back(
                a.malloc(bytes, static_cast<int>(program.buffers[static_cast<std::size_t>(b)].pool), 0));
      };
      const auto release = [&](std::int32_t b) {
        for (const auto h : live[static_cast<std::size_t>(b)]) a.free(h);
        live[static_cast<std::size_t>(b)].clear();
      };
      memory_events(step, op, allocate, release);
    }
  };
  run(program.init);
  run(program.first_step);
  for (int k = 0; k < steady_steps; ++k) run(program.steady_step);
  return a.stats();
}

}  // namespace

TEST_CASE("lowered programs: requested is what memory says, and stopping early changes nothing") {
  const ModelGraph m = load_model("llama3-8b", 8192);
  const Implementation& titan = find_implementation("torchtitan", false, "test");
  for (const std::int64_t gpus : {8, 64}) {
    for (const Dialect dialect : {Dialect::fsdp2, Dialect::ddp}) {
      PlanOptions options;
      options.ranks = gpus;
      options.seq_len = 8192;
      options.dialect = dialect;
      options.micro_batches = {1, 1};
      const Program program = lower(m, naive_plan(m, options), titan);
      const std::string name = std::to_string(gpus) + " " + std::string(fsdp::name(dialect));
      CAPTURE(name);
      for (const bool expandable : {false, true}) {
        ReplayOptions replay;
        replay.settings.expandable_segments = expandable;
        const AllocatorPrediction p = replay_allocator(program, replay);
        const AllocatorStats plain = replay_plainly(program, replay.settings, 5);
        CHECK(p.peak_requested == replay_memory(program).peak);
        CHECK(p.peak_reserved == plain.reserved.peak);
        CHECK(p.peak_allocated == plain.allocated.peak);
        CHECK(p.peak_active == p.peak_allocated);  // nothing is recorded in these dialects
        CHECK(p.segments == plain.segments);
        // Rounding costs little, what lies between blocks more: published runs reserve 1.13 to 1.20 times what they
        // allocate.
        CHECK(p.peak_allocated >= p.peak_requested);
        CHECK(static_cast<double>(p.peak_allocated) < 1.01 * static_cast<double>(p.peak_requested));
        CHECK(static_cast<double>(p.peak_reserved) < (expandable ? 1.1 : 1.25) * static_cast<double>(p.peak_allocated));
        // What was reserved is enough, and fits without a retry.
        replay.settings.capacity = p.peak_reserved;
        CHECK(replay_allocator(program, replay).retries == 0);
        replay.settings.capacity = p.peak_allocated - 1;
        CHECK(replay_allocator(program, replay).out_of_memory);
      }
    }
  }
}

TEST_CASE("cuBLAS's workspaces: eight pieces of 4 MiB from Hopper on, two of 4 MiB and eight of 16 KiB before, twice") {
  CHECK(cublas_workspaces(load_gpu("h100-sxm-80", "test"))[1].bytes == 8 * 4096 * 1024);
  CHECK(cublas_workspaces(load_gpu("b200", "test"))[1].bytes == 8 * 4096 * 1024);
  for (const char* older : {"v100-sxm2-32", "a100-sxm-40", "l40s", "rtx-4090"})
    CHECK(cublas_workspaces(load_gpu(older, "test"))[1].bytes == 2 * 4096 * 1024 + 8 * 16 * 1024);
}
