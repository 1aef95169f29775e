// Checkpoints: what is saved is what the ranks held, and any mesh goes on from it. Cases named test_* stand for
// PyTorch's tests of that name (tests/PARITY.md).
#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "executor/checkpoint/checksum.h"
#include "executor/checkpoint/export.h"
#include "executor/checkpoint/pieces.h"
#include "executor/data/initial_weights.h"
#include "executor/data/safetensors.h"
#include "tests/support/checkpoint_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// 24 sequences in a step, however many ranks.
PlanWords words(std::int64_t replicate, std::int64_t shard, DType master = DType::f32) {
  PlanWords w;
  w.replicate = replicate;
  w.shard = shard;
  w.micro_batches = {24 / (replicate * shard)};
  w.compute = w.reduce = w.master = master;
  return w;
}

void check_equal(const State& a, const State& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, bytes] : a) {
    CAPTURE(name);
    REQUIRE(b.contains(name));
    CHECK(bytes == b.at(name));
  }
}

void check_near(const State& a, const State& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, bytes] : a) {
    CAPTURE(name);
    CHECK(distance(as_doubles(bytes, DType::f64), as_doubles(b.at(name), DType::f64)) <= tolerance);
  }
}

std::vector<double> last(const std::vector<double>& losses, std::size_t n) {
  return {losses.end() - static_cast<std::ptrdiff_t>(n), losses.end()};
}

double value_at(std::size_t parameter, std::int64_t index, int part) {
  return static_cast<double>(parameter * 100'000) + static_cast<double>(index) + 0.25 * part;
}

// A checkpoint without a run, of buffers whose values say where they are: for layouts that no run takes yet.
void save_by_hand(const ModelGraph& model, const ShardingPlan& plan, const SaveOptions& options,
                  std::int64_t step = 7) {
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  static_cast<void>(claim_folder(options.files, options.directory, 0));
  const auto backend = make_host_backend({plan.replicate(), plan.shard()}, {30});
  backend->run([&](Device& device) {
    Program program;
    program.layouts = layouts;
    const std::int64_t shard = device.rank() % plan.shard();
    std::vector<std::vector<double>> buffers(layouts.size() * 3);
    for (std::size_t u = 0; u < layouts.size(); ++u)
      for (int part = 0; part < 3; ++part) {
        std::vector<double>& buffer = buffers[u * 3 + static_cast<std::size_t>(part)];
        if (part == 0) buffer.assign(static_cast<std::size_t>(layouts[u].shard_elements), -1);
        for (const ShardedParam& p : layouts[u].params) {
          const std::int64_t rows =
              std::max<std::int64_t>(0, std::min((shard + 1) * p.chunk_rows, p.rows) - shard * p.chunk_rows);
          for (std::int64_t i = 0; i < rows * p.row_elements; ++i) {
            const auto& shape = model.parameters[static_cast<std::size_t>(p.param)].shape;
            const double v =
                value_at(static_cast<std::size_t>(p.param),
                         whole_index(shape, static_cast<std::size_t>(p.dim), shard * p.chunk_rows, rows, i), part);
            if (part == 0) buffer[static_cast<std::size_t>(p.offset + i)] = v;
            else if (p.trainable) buffer.push_back(v);
          }
        }
      }
    const auto view = [&](std::int32_t unit, StatePart part) {
      std::vector<double>& b = buffers[static_cast<std::size_t>(unit) * 3 + static_cast<std::size_t>(part)];
      return BufferView{reinterpret_cast<std::byte*>(b.data()), static_cast<std::int64_t>(b.size() * sizeof(double))};
    };
    save_checkpoint({program, device, step, view, true}, model, plan, options);
  });
}

// Every box of a grid of a tensor that was saved by hand holds the values that say so.
void check_by_hand(const Checkpoint& saved, const ModelGraph& model, const ShardingPlan& plan) {
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& p = model.parameters[i];
    CAPTURE(p.name);
    for (int part = 0; part < (p.trainable ? 3 : 1); ++part)
      for (std::size_t dim = 0; dim < p.shape.size(); ++dim)
        for (const std::int64_t ranks : {1, 2, 3, 5}) {
          const std::int64_t chunk = (p.shape[dim] + ranks - 1) / ranks;
          for (std::int64_t begin = 0; begin < p.shape[dim]; begin += chunk) {
            const std::int64_t rows = std::min(chunk, p.shape[dim] - begin);
            const Box box = box_of({static_cast<std::int64_t>(dim), begin, rows}, p.shape);
            std::vector<double> values(static_cast<std::size_t>(box.volume()), -2), expected;
            saved.read(*saved.find(name_of(p, static_cast<StatePart>(part), plan.optimizer.kind)), box,
                       std::as_writable_bytes(std::span(values)));
            for (std::int64_t e = 0; e < box.volume(); ++e)
              expected.push_back(value_at(i, whole_index(p.shape, dim, begin, rows, e), part));
            CHECK(values == expected);
          }
        }
  }
  CHECK(saved.manifest().mesh == plan.mesh);
}

SaveOptions into(const std::string& directory, std::int64_t block = 1 << 20) {
  SaveOptions o;
  o.directory = directory;
  o.block_bytes = block;
  return o;
}

}  // namespace

TEST_CASE("CRC-32C: the values of RFC 3720, and table and instruction agree") {
  const auto of = [](const std::string& text) { return crc32c(std::as_bytes(std::span(text))); };
  CHECK(of("123456789") == 0xE3069283);
  CHECK(of(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(of(std::string(32, '\xFF')) == 0x62A8AB43);
  CHECK(of("") == 0);
  std::mt19937 random(1);
  for (std::size_t n = 0; n < 100; ++n) {
    std::string text(n, ' ');
    for (char& c : text) c = static_cast<char>(random());
    CHECK(of(text) == crc32c_table(std::as_bytes(std::span(text))));
  }
}

TEST_CASE("runs of a box between two others are the elements that counting gives") {
  std::mt19937 random(2);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto index_in = [](const Box& b, const std::vector<std::int64_t>& at) {
    std::int64_t i = 0;
    for (std::size_t d = 0; d < at.size(); ++d) i = i * b.sizes[d] + at[d] - b.offsets[d];
    return i;
  };
  for (int round = 0; round < 500; ++round) {
    const std::size_t dims = 1 + static_cast<std::size_t>(below(4));
    std::vector<std::int64_t> shape(dims);
    for (std::int64_t& s : shape) s = 1 + below(5);
    const auto box = [&] {
      Box b = whole(shape);
      for (std::size_t d = 0; d < dims; ++d)
        if (below(2) == 0) {
          b.offsets[d] = below(shape[d]);
          b.sizes[d] = 1 + below(shape[d] - b.offsets[d]);
        }
      return b;
    };
    const Box a = box(), b = box();
    std::map<std::int64_t, std::int64_t> expected, got;
    std::vector<std::int64_t> at(dims, 0);
    for (std::int64_t e = 0; e < whole(shape).volume(); ++e) {
      std::int64_t rest = e;
      bool in_both = true;
      for (std::size_t d = dims; d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
      for (std::size_t d = 0; d < dims; ++d)
        for (const Box* x : {&a, &b})
          in_both = in_both && at[d] >= x->offsets[d] && at[d] < x->offsets[d] + x->sizes[d];
      if (in_both) expected[index_in(a, at)] = index_in(b, at);
    }
    const std::optional<Box> both = intersection(a, b);
    CHECK(both.has_value() == !expected.empty());
    std::int64_t before = -1;
    if (both)
      for_each_run(*both, a, b, [&](std::int64_t from, std::int64_t to, std::int64_t n) {
        CHECK(from > before);
        before = from;
        for (std::int64_t i = 0; i < n; ++i) got[from + i] = to + i;
      });
    CHECK(got == expected);
  }
}

TEST_CASE("test_dp_state_dict_save_load: what ranks hold is what is saved and loaded, dims 2 to 5, FSDP and HSDP") {
  for (const std::int64_t dim : {2, 3, 4, 5})
    for (const auto& [replicate, shard] :
         {std::pair{1, 1}, std::pair{1, 2}, std::pair{1, 4}, std::pair{2, 2}, std::pair{2, 3}}) {
      CAPTURE(dim);
      CAPTURE(replicate);
      CAPTURE(shard);
      const ModelGraph model = chain({dim, dim + 1, dim, 7});
      const ShardingPlan plan = make_plan(model, words(replicate, shard));
      const Folder folder;
      const Trained t = train(model, plan, 3, saving(model, plan, folder / "ckpt"));
      const Checkpoint saved(folder / "ckpt");
      CHECK(saved.manifest().step == 3);
      CHECK(saved.manifest().sequences == 3 * 24);
      check_equal(state_in(saved), t.after.at(3));
      saved.verify();
    }
}

TEST_CASE("test_dp_state_dict_save_load: shards of the largest dimension, not the first") {
  const ModelGraph model = chain({16, 6, 16, 4, 12});
  for (const auto& [replicate, shard] : {std::pair{1, 2}, std::pair{2, 4}, std::pair{1, 4}}) {
    ShardingPlan plan = make_plan(model, words(replicate, shard, DType::f64));
    plan.shard_dims = {{"layers.0.0.weight", 1}, {"layers.2.0.weight", 1}, {"embed.weight", 1}};
    const Folder folder;
    save_by_hand(model, plan, into(folder / "ckpt", 24));  // a block is three elements
    check_by_hand(Checkpoint(folder / "ckpt"), model, plan);
    save_by_hand(model, plan, into(folder / "large"));
    check_by_hand(Checkpoint(folder / "large"), model, plan);
  }
}

TEST_CASE("10 steps straight are 5, a checkpoint and 5 more, to the last bit") {
  const ModelGraph models[] = {even_chain(), uneven_chain(), small_llama({.layers = 2}),
                               small_llama({.layers = 2, .tied = true})};
  for (const ModelGraph& model : models)
    for (const auto& [optimizer, momentum] :
         {std::pair{OptimizerKind::adamw, 0.0}, {OptimizerKind::sgd, 0.0}, {OptimizerKind::sgd, 0.9}})
      for (const auto& [replicate, shard] : {std::pair{1, 3}, std::pair{2, 2}}) {
        CAPTURE(shard);
        PlanWords w = words(replicate, shard);
        w.optimizer = optimizer;
        w.momentum = momentum;
        w.clip_norm = 1.0;
        const ShardingPlan plan = make_plan(model, w);
        const Folder folder;
        const Trained straight = train(model, plan, 10);
        const Trained first = train(model, plan, 5, saving(model, plan, folder / "ckpt"));
        const Trained second = train(model, plan, 5, resuming(model, plan, folder / "ckpt"));
        check_equal(first.after.at(5), straight.after.at(5));
        for (std::int64_t s = 6; s <= 10; ++s) check_equal(second.after.at(s), straight.after.at(s));
        CHECK(second.result.measurement.losses == last(straight.result.measurement.losses, 5));
      }
}

TEST_CASE("any master dtype; a replicated run (ddp) too") {
  const ModelGraph model = uneven_chain();
  for (const DType master : {DType::f64, DType::f32, DType::bf16}) {
    for (const Dialect dialect : {Dialect::fsdp2, Dialect::ddp}) {
      PlanWords w = dialect == Dialect::ddp ? words(3, 1, master) : words(1, 3, master);
      w.dialect = dialect;
      const ShardingPlan plan = make_plan(model, w);
      const Folder folder;
      const Trained straight = train(model, plan, 4);
      const Trained first = train(model, plan, 2, saving(model, plan, folder / "ckpt"));
      check_equal(state_in(Checkpoint(folder / "ckpt")), first.after.at(2));
      const Trained second = train(model, plan, 2, resuming(model, plan, folder / "ckpt"));
      check_equal(second.after.at(4), straight.after.at(4));
    }
  }
}

// The state is the same to the last bit at any mesh; the steps after it differ by the order of sums only.
TEST_CASE("a checkpoint of any mesh and wrap policy is gone on from at any other") {
  const ModelGraph model = small_llama({.layers = 2});
  const auto plan_of = [&](std::int64_t r, std::int64_t s, const char* wrap) {
    PlanWords w = words(r, s, DType::f64);
    w.wrap = wrap;
    return make_plan(model, w);
  };
  const std::vector<ShardingPlan> plans = {plan_of(1, 1, "root"),    plan_of(1, 3, "block"), plan_of(2, 2, "block"),
                                           plan_of(2, 3, "block:2"), plan_of(4, 1, "block"), plan_of(1, 8, "root")};
  const Trained straight = train(model, plans[0], 6);
  for (const ShardingPlan& from : plans) {
    const Folder folder;
    const Trained first = train(model, from, 3, saving(model, from, folder / "ckpt"));
    check_equal(state_in(Checkpoint(folder / "ckpt")), first.after.at(3));
    for (const ShardingPlan& to : plans) {
      const Trained second = train(model, to, 3, resuming(model, to, folder / "ckpt"));
      check_near(second.after.at(6), straight.after.at(6), 1e-10);
      CHECK(distance(second.result.measurement.losses, last(straight.result.measurement.losses, 3)) <= 1e-10);
    }
  }
}

TEST_CASE("test_hsdp_checkpoint: saved, trained on, loaded: as it was saved; even and uneven models") {
  for (const ModelGraph& model : {even_chain(), uneven_chain()}) {
    const ShardingPlan plan = make_plan(model, words(2, 4));
    const Folder folder;
    const Trained t = train(model, plan, 4, saving(model, plan, folder / "ckpt", 2));
    CHECK(t.after.at(2) != t.after.at(4));
    check_equal(state_in(Checkpoint(folder / "ckpt/step-00000002")), t.after.at(2));
    const Trained again = train(model, plan, 2, resuming(model, plan, folder / "ckpt/step-00000002"));
    check_equal(again.after.at(4), t.after.at(4));
  }
}

TEST_CASE("test_hsdp_fsdp_checkpoint_conversion: HSDP to FSDP and back; even and uneven models") {
  for (const ModelGraph& model : {even_chain(), uneven_chain()}) {
    const ShardingPlan hsdp = make_plan(model, words(2, 2, DType::f64)),
                       fsdp = make_plan(model, words(1, 8, DType::f64));
    for (const auto& [from, to] : {std::pair{hsdp, fsdp}, std::pair{fsdp, hsdp}}) {
      const Folder folder;
      const Trained straight = train(model, from, 4);
      const Trained first = train(model, from, 2, saving(model, from, folder / "ckpt"));
      const Trained second = train(model, to, 2, resuming(model, to, folder / "ckpt"));
      check_near(second.after.at(4), straight.after.at(4), 1e-10);
      // What the other mesh holds before it trains is what was saved: loaded by slab, as its ranks do.
      const Checkpoint saved(folder / "ckpt");
      save_by_hand(model, to, into(folder / "by-hand"));
      check_by_hand(Checkpoint(folder / "by-hand"), model, to);
      check_equal(state_in(saved), first.after.at(2));
    }
  }
}

TEST_CASE("test_dp_state_dict_cpu_offload: a part of the tensors can be read by itself") {
  const ModelGraph model = uneven_chain();
  const ShardingPlan plan = make_plan(model, words(1, 3));
  const Folder folder;
  const Trained t = train(model, plan, 2, saving(model, plan, folder / "ckpt"));
  const Checkpoint saved(folder / "ckpt");
  const SavedTensor* weight = saved.find("layers.2.0.weight");
  REQUIRE(weight != nullptr);
  std::string bytes(30 * 15 * sizeof(float), '\0');
  saved.read(*weight, whole(weight->shape), std::as_writable_bytes(std::span(bytes)));
  CHECK(bytes == t.after.at(2).at("layers.2.0.weight"));
  CHECK(saved.find("layers.9.0.weight") == nullptr);
}

TEST_CASE("replicas share the work: every element once, evenly by bytes") {
  const ModelGraph model = small_llama({.layers = 4});
  for (const auto& [replicate, shard] : {std::pair{4, 1}, std::pair{3, 2}, std::pair{2, 3}}) {
    const ShardingPlan plan = make_plan(model, words(replicate, shard));
    const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
    std::int64_t all = 0, largest = 0;
    std::vector<std::int64_t> bytes;
    for (std::int64_t rank = 0; rank < plan.ranks(); ++rank) {
      bytes.push_back(0);
      for (const Piece& p : pieces_to_write(model, plan, layouts, rank)) {
        bytes.back() += p.bytes;
        largest = std::max(largest, p.bytes);
      }
      all += bytes.back();
    }
    CHECK(all == 3 * model.parameter_count() * 4);
    for (std::int64_t s = 0; s < shard; ++s) {
      std::vector<std::int64_t> of_shard;
      for (std::int64_t r = 0; r < replicate; ++r) of_shard.push_back(bytes[static_cast<std::size_t>(r * shard + s)]);
      const auto [least, most] = std::minmax_element(of_shard.begin(), of_shard.end());
      CHECK(*most - *least <= largest);
    }
  }
}

TEST_CASE("a rank reads only the blocks that its shard touches") {
  const ModelGraph model = chain({16, 64, 16, 12});
  const ShardingPlan plan = make_plan(model, words(1, 2, DType::f64));
  const Folder folder;
  constexpr std::int64_t block = 64;  // 8 elements
  save_by_hand(model, plan, into(folder / "ckpt", block));
  std::int64_t bytes = 0;
  FileSystem counting = machine_file_system();
  counting.read = [&bytes, read = counting.read](int file, std::span<std::byte> to, std::int64_t at) {
    bytes += static_cast<std::int64_t>(to.size());
    return read(file, to, at);
  };
  const Checkpoint saved(folder / "ckpt", counting);
  const SavedTensor& weight = *saved.find("layers.0.0.weight");  // [64, 16], saved as rows [0, 32) and [32, 64)
  const auto cost = [&](const Box& box) {
    bytes = 0;
    std::vector<std::byte> to(static_cast<std::size_t>(box.volume()) * 8);
    saved.read(weight, box, to);
    return bytes;
  };
  CHECK(cost({{0, 0}, {64, 16}}) == 64 * 16 * 8);
  CHECK(cost({{16, 0}, {16, 16}}) == 16 * 16 * 8);  // a quarter
  CHECK(cost({{24, 0}, {16, 16}}) == 16 * 16 * 8);  // across both files
  CHECK(cost({{5, 0}, {1, 16}}) == 16 * 8);
  CHECK(cost({{0, 8}, {64, 8}}) == 64 * 8 * 8);   // columns: a block of each row
  CHECK(cost({{0, 6}, {64, 4}}) == 64 * 16 * 8);  // columns that touch both blocks of each row
  CHECK(cost({{3, 1}, {1, 2}}) == block);
  CHECK(cost({{31, 15}, {2, 1}}) == 2 * block);
}

TEST_CASE("data goes on with the sequence after the last one, also at another global batch") {
  const ModelGraph model = even_chain();
  const auto plan_of = [&](std::int64_t per_rank) {
    PlanWords w = words(1, 2);
    w.micro_batches = {per_rank};
    return make_plan(model, w);
  };
  const Folder folder;
  const ShardingPlan small = plan_of(3), large = plan_of(5);
  static_cast<void>(train(model, small, 3, saving(model, small, folder / "ckpt")));
  RunOptions options = resuming(model, large, folder / "ckpt");
  CHECK(options.training.steps_done == 3);
  CHECK(options.training.sequences_done == 18);
  std::vector<std::atomic<int>> counts(64);
  options.training.tokens = [&](std::int64_t sequence, std::int64_t seq_len, std::int64_t* ids, std::int64_t* targets) {
    for (std::int64_t i = 0; i < seq_len; ++i) ids[i] = targets[i] = (sequence + i) % 12;
    ++counts[static_cast<std::size_t>(sequence)];
  };
  static_cast<void>(train(model, large, 2, options));
  for (std::size_t s = 0; s < counts.size(); ++s) CHECK(counts[s].load() == (s >= 18 && s < 38 ? 1 : 0));
}

TEST_CASE("--keep: older checkpoints go when the newer is there; --save-every counts steps of training") {
  const ModelGraph model = even_chain();
  const ShardingPlan plan = make_plan(model, words(1, 2));
  const Folder folder;
  const FileSystem files = machine_file_system();
  static_cast<void>(train(model, plan, 7, saving(model, plan, folder / "ckpt", 2, 2)));
  CHECK(saved_steps(files, folder / "ckpt") == std::vector<std::int64_t>{6, 7});
  RunOptions more = resuming(model, plan, folder / "ckpt");
  SaveOptions save = into(folder / "ckpt");
  save.every = 2;
  save.steps_before = 7;
  save.sequences_before = *more.training.sequences_done;
  more.after_step = checkpoint_saver(model, plan, save);
  static_cast<void>(train(model, plan, 4, more));
  CHECK(saved_steps(files, folder / "ckpt") == std::vector<std::int64_t>{6, 7, 8, 10, 11});
  CHECK(Checkpoint(folder / "ckpt").manifest().sequences == 11 * 24);
}

TEST_CASE("a run can start from what was exported: the very values") {
  const ModelGraph model = small_llama({.layers = 2, .tied = true});
  const ShardingPlan plan = make_plan(model, words(1, 2));
  const Folder folder;
  const Trained t = train(model, plan, 2, saving(model, plan, folder / "ckpt"));
  ExportOptions options;
  options.output = folder / "hf";
  options.max_file_bytes = 4000;
  CHECK(export_checkpoint(Checkpoint(folder / "ckpt"), options).files > 1);
  const StateReader read = InitialWeights(folder / "hf", "--init-from", model).reader();
  for (const Parameter& p : model.parameters) {
    std::string bytes(static_cast<std::size_t>(p.numel() * 4), '\xFF');
    read(p, StatePart::parameter, {0, 0, p.shape[0]}, DType::f32, reinterpret_cast<std::byte*>(bytes.data()));
    CHECK(bytes == t.after.at(2).at(p.name));
  }
}

TEST_CASE("values that are infinite are not saved, and what was saved before stays") {
  const ModelGraph model = even_chain();
  const ShardingPlan plan = make_plan(model, words(1, 2));
  const Folder folder;
  RunOptions options = saving(model, plan, folder / "ckpt", 1, 1);
  options.training.learning_rate = [](std::int64_t step) {
    return step == 2 ? 1e300 : 1e-3;
  };  // the third step's update; its loss is finite
  CHECK_THROWS_WITH_AS(train(model, plan, 3, options), doctest::Contains("has values that are infinite or not numbers"),
                       MachineError);
  CHECK(saved_steps(machine_file_system(), folder / "ckpt") == std::vector<std::int64_t>{2});
}

TEST_CASE("a checkpoint without its manifest is named, not passed over") {
  const ModelGraph model = even_chain();
  const ShardingPlan plan = make_plan(model, words(1, 2));
  const Folder folder;
  static_cast<void>(train(model, plan, 3, saving(model, plan, folder / "ckpt", 1)));
  std::filesystem::remove(folder / "ckpt/step-00000003/manifest.json");
  CHECK(holds(refusal([&] { return Checkpoint(folder / "ckpt").folder(); }), "step-00000003: has no manifest.json"));
  CHECK(holds(refusal([&] { return claim_folder(machine_file_system(), folder / "ckpt", 2); }),
              "step-00000003: has no manifest.json"));
  CHECK_THROWS_AS(Checkpoint(folder / "ckpt/step-00000003/"), DamagedCheckpoint);
  CHECK_THROWS_AS(Checkpoint(folder / "ckpt"), DamagedCheckpoint);
  CHECK(Checkpoint(folder / "ckpt/step-00000002").manifest().step == 2);
}

TEST_CASE("a folder that a run may not save into is refused before it starts") {
  const ModelGraph model = even_chain();
  const ShardingPlan plan = make_plan(model, words(1, 2));
  const Folder folder;
  const FileSystem files = machine_file_system();
  static_cast<void>(train(model, plan, 3, saving(model, plan, folder / "deep/er/ckpt")));
  const std::string directory = folder / "deep/er/ckpt";
  CHECK(holds(refusal([&] { return claim_folder(files, directory, 0); }),
              "holds a checkpoint of step 3, after the 0 steps"));
  CHECK(refusal([&] { return claim_folder(files, directory, 3); }).empty());
  const auto claim = claim_folder(files, directory, 3);
  CHECK(holds(refusal([&] { return claim_folder(files, directory, 3); }), "another run is saving into it"));
  write_bytes(folder / "file", "x");
  CHECK(holds(refusal([&] { return claim_folder(files, folder / "file", 0); }), "is no folder"));
  CHECK(holds(refusal([&] { return claim_folder(files, folder / "file/below", 0); }), "cannot be made"));
  CHECK(holds(refusal([&] { return claim_folder(files, "/proc/nothing", 0); }), "cannot be made"));
  CHECK(saved_steps(files, folder / "nothing").empty());
  CHECK(holds(refusal([&] { return Checkpoint(folder / "nothing").folder(); }), "holds no checkpoint"));
}

TEST_CASE("test_rank0_offload_full_state_dict: exported whole, under its own names, in one file or several") {
  const ModelGraph model = small_llama({.layers = 2, .tied = true});
  const ShardingPlan plan = make_plan(model, words(2, 3));
  const Folder folder;
  const Trained t = train(model, plan, 2, saving(model, plan, folder / "ckpt"));
  const Checkpoint saved(folder / "ckpt");
  const auto values = [](const SafetensorsFile& f, const SafetensorsTensor& tensor, DType type) {
    std::vector<float> v(static_cast<std::size_t>(tensor.numel()));
    f.read(tensor, 0, tensor.numel(), type, reinterpret_cast<std::byte*>(v.data()));
    return v;
  };
  const auto floats = [](const std::string& bytes) {
    std::vector<float> v(bytes.size() / sizeof(float));
    std::memcpy(v.data(), bytes.data(), bytes.size());
    return v;
  };
  ExportOptions one;
  one.output = folder / "one";
  const Exported exported = export_checkpoint(saved, one);
  CHECK(exported.files == 1);
  CHECK(exported.bytes == model.parameter_count() * 4);
  const SafetensorsFile file(folder / "one/model.safetensors", "test");
  CHECK(file.header().tensors.size() == model.parameters.size());  // the tied head is the embedding
  CHECK(file.header().metadata.at("format") == "pt");
  for (const Parameter& p : model.parameters) {
    const SafetensorsTensor* tensor = file.header().find(p.name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == p.shape);
    CHECK(values(file, *tensor, DType::f32) == floats(t.after.at(2).at(p.name)));
  }
  CHECK(holds(refusal([&] { return export_checkpoint(saved, one).files; }), "exists already"));

  ExportOptions split;
  split.output = folder / "split/";
  split.max_file_bytes = 4000;
  split.dtype = DType::f64;
  const Exported parts = export_checkpoint(saved, split);
  CHECK(parts.files > 2);
  const auto index = nlohmann::json::parse(read_bytes(folder / "split/model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == model.parameter_count() * 8);
  for (const Parameter& p : model.parameters) {
    const std::string name = index["weight_map"][p.name];
    const SafetensorsFile part(folder / ("split/" + name), "test");
    const SafetensorsTensor* tensor = part.header().find(p.name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->type == DType::f64);
    CHECK(values(part, *tensor, DType::f32) == floats(t.after.at(2).at(p.name)));  // exact: fp32 widened
    CHECK((part.header().data_bytes <= 4000 || part.header().tensors.size() == 1));
  }
  CHECK_FALSE(std::filesystem::exists(folder / ".exporting-split"));
  CHECK_FALSE(std::filesystem::exists(folder / ".exporting-one"));
}

TEST_CASE("parse(format(manifest)) is the manifest") {
  const ModelGraph model = uneven_chain();
  const ShardingPlan plan = make_plan(model, words(2, 3, DType::f64));
  const Folder folder;
  save_by_hand(model, plan, into(folder / "ckpt", 32));
  const std::string text = read_bytes(folder / "ckpt/step-00000007/manifest.json");
  const Manifest m = parse_manifest(text, "manifest.json");
  CHECK(m.tensors.size() == 3 * model.parameters.size());
  CHECK(parse_manifest(to_json_text(m), "again") == m);
  CHECK(to_json_text(m) == text);
  std::string changed = text;
  changed.replace(changed.find("\"seed\": 1234"), 12, "\"seed\": 1235");
  CHECK(holds(refusal([&] { return parse_manifest(changed, "manifest.json"); }), "does not match its own checksum"));
}

// Hugging Face's library and transformers read what was exported.
TEST_CASE("Python reads the export") {
  const char* chosen = std::getenv("FSDP_PLAN_PYTHON");
  const std::string python = chosen != nullptr ? chosen : "python3";
  const auto runs = [&](const std::string& code) {
    return std::system((python + " -c '" + code + "' >/dev/null 2>&1").c_str()) == 0;
  };
  if (!runs("import torch, transformers, safetensors")) {
    MESSAGE("skipped: '" << python << "' cannot import torch, transformers and safetensors (set FSDP_PLAN_PYTHON)");
    return;
  }
  const ModelGraph model = small_llama({.layers = 2, .vocab = 40, .hidden = 24, .inner = 36});
  const ShardingPlan plan = make_plan(model, words(1, 3));
  const Folder folder;
  const Trained t = train(model, plan, 2, saving(model, plan, folder / "ckpt"));
  for (const std::int64_t limit : {0, 6000}) {
    ExportOptions o;
    o.output = folder / ("out" + std::to_string(limit));
    o.max_file_bytes = limit;
    static_cast<void>(export_checkpoint(Checkpoint(folder / "ckpt"), o));
    write_bytes(
        o.output + "/config.json",
        R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                    "hidden_act": "silu", "tie_word_embeddings": false})");
    const std::string expected = folder / "expected";
    std::filesystem::create_directories(expected);
    for (const Parameter& p : model.parameters) write_bytes(expected + "/" + p.name, t.after.at(2).at(p.name));
    write_bytes(
        folder / "read.py",
        "import sys, torch, transformers\n"
        "model, info = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True, "
        "dtype=torch.float32)\n"
        "assert not info['missing_keys'] and not info['unexpected_keys'] and not info['mismatched_keys'], info\n"
        "n = 0\n"
        "for name, p in model.named_parameters():\n"
        "    assert p.detach().numpy().tobytes() == open(sys.argv[2] + '/' + name, 'rb').read(), name\n"
        "    n += 1\n"
        "assert n == int(sys.argv[3]), n\n");
    CHECK(std::system((python + " " + (folder / "read.py") + " " + o.output + " " + expected + " " +
                       std::to_string(model.parameters.size()) + " >" + (folder / "log") + " 2>&1")
                          .c_str()) == 0);
    INFO(read_bytes(folder / "log"));
  }
}
