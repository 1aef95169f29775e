// Checkpoints that are damaged, cut short, mixed up or of another run are refused by name.
#include <algorithm>
#include <atomic>

#include "tests/executor/checkpoint/saved_run.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Damage {
  std::string what;
  std::function<void(const std::string& step, const std::string& other)>
      harm;  // folders of the checkpoint and of another one
  std::vector<std::string> says;
};

void flip(const std::string& file, std::size_t at) {
  std::string bytes = read_bytes(file);
  REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_bytes(file, bytes);
}

// The manifest with a change, its checksum right again.
void edit(const std::string& step, const std::function<void(Manifest&)>& change) {
  const std::string file = step + "/manifest.json";
  Manifest m = parse_manifest(read_bytes(file), file);
  change(m);
  write_bytes(file, to_json_text(m));
}
SavedTensor& tensor(Manifest& m, const std::string& name) {
  const auto found =
      std::find_if(m.tensors.begin(), m.tensors.end(), [&](const SavedTensor& t) { return t.name == name; });
  REQUIRE(found != m.tensors.end());
  return *found;
}

}  // namespace

TEST_CASE("damaged, truncated, mixed up and missing files are refused by name; nothing is run and nothing is changed") {
  const ModelGraph model = small_model();
  const ShardingPlan plan = small_plan();
  const Folder folder;
  make_base(folder / "base");
  static_cast<void>(go_on(folder / "base", machine_file_system()));  // steps 3 and 4
  const ModelGraph other_model = chain({3, 6, 6});
  const ShardingPlan other_plan = make_plan(other_model, {.shard = 2, .micro_batches = {2}, .seq_len = 3});
  static_cast<void>(train(other_model, other_plan, 4, saving(other_model, other_plan, folder / "other")));
  const std::string rank0 = "/rank-00000.safetensors", rank1 = "/rank-00001.safetensors", manifest = "/manifest.json";
  const auto to = [](std::size_t size, const std::string& file) { fs::resize_file(file, size); };
  const Damage cases[] = {
      {"a byte of data",
       [&](auto& s, auto&) { flip(s + rank1, read_bytes(s + rank1).size() - 1); },
       {rank1, "tensor '", "do not match their checksum"}},
      {"a byte of the first tensor",
       [&](auto& s, auto&) {
         flip(s + rank0, static_cast<std::size_t>(Checkpoint(s).manifest().files[0].header_bytes));
       },
       {rank0, "tensor '", "do not match"}},
      {"a byte of a header", [&](auto& s, auto&) { flip(s + rank0, 20); }, {rank0, "header differs"}},
      {"cut by one byte",
       [&](auto& s, auto&) { to(fs::file_size(s + rank1) - 1, s + rank1); },
       {rank1, "it is truncated"}},
      {"cut in its header", [&](auto& s, auto&) { to(100, s + rank1); }, {rank1}},
      {"empty", [&](auto& s, auto&) { to(0, s + rank1); }, {rank1}},
      {"longer", [&](auto& s, auto&) { write_bytes(s + rank1, read_bytes(s + rank1) + "x"); }, {rank1, "where"}},
      {"missing", [&](auto& s, auto&) { fs::remove(s + rank1); }, {rank1, "is missing"}},
      {"two ranks exchanged",
       [&](auto& s, auto&) {
         fs::rename(s + rank0, s + "/x");
         fs::rename(s + rank1, s + rank0);
         fs::rename(s + "/x", s + rank1);
       },
       {rank0, "model mlp, step 4, rank 1, not of mlp, step 4, rank 0"}},
      {"of another step",
       [&](auto& s, auto&) {
         fs::copy_file(folder / "ckpt/step-00000003/rank-00000.safetensors", s + rank0,
                       fs::copy_options::overwrite_existing);
       },
       {rank0, "step 3, rank 0, not of mlp, step 4"}},
      {"of another model",
       [&](auto& s, auto& o) { fs::copy_file(o + rank1, s + rank1, fs::copy_options::overwrite_existing); },
       {rank1, "is not the file that was written: its header differs, though it names this model"}},
      {"manifest of another step",
       [&](auto& s, auto&) {
         fs::copy_file(folder / "ckpt/step-00000003/manifest.json", s + manifest, fs::copy_options::overwrite_existing);
       },
       {manifest, "is of step 3"}},
      {"all of another model",
       [&](auto& s, auto& o) {
         fs::remove_all(s);
         fs::copy(o, s);
       },
       {manifest, "tensor '"}},
      {"a link",
       [&](auto& s, auto& o) {
         fs::remove(s + rank0);
         fs::create_symlink(o + rank0, s + rank0);
       },
       {rank0, "is not a file (links are not followed)"}},
      {"a folder",
       [&](auto& s, auto&) {
         fs::remove(s + rank0);
         fs::create_directory(s + rank0);
       },
       {rank0, "is not a file"}},
      {"manifest cut", [&](auto& s, auto&) { to(500, s + manifest); }, {manifest}},
      {"manifest changed",
       [&](auto& s, auto&) {
         std::string text = read_bytes(s + manifest);
         text.replace(text.find("\"sequences\": "), 13, "\"sequences\": 1");
         write_bytes(s + manifest, text);
       },
       {manifest, "does not match its own checksum"}},
      {"boxes overlap",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { tensor(m, "embed.weight").boxes[1].box.offsets[0] -= 1; }); },
       {manifest, "embed.weight", "overlap"}},
      {"a hole",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { tensor(m, "embed.weight").boxes.pop_back(); }); },
       {manifest, "embed.weight", "hold 9 of 18 elements"}},
      {"a box outside",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { tensor(m, "embed.weight").boxes[1].box.offsets[0] += 1; }); },
       {manifest, "embed.weight", "not inside"}},
      {"sizes that overflow",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           m.tensors[0].shape = {std::int64_t{1} << 53, std::int64_t{1} << 53};
           m.tensors[0].boxes[0].box.sizes = m.tensors[0].shape;
         });
       },
       {manifest, "tensors[0]"}},
      {"a box beyond its file",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].boxes[0].begin = m.files[0].bytes; }); },
       {manifest, "tensors[0]"}},
      {"bytes used twice",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           tensor(m, "optimizer.exp_avg.embed.weight").boxes[0].begin = tensor(m, "embed.weight").boxes[0].begin;
         });
       },
       {manifest, "share bytes of rank-00000"}},
      {"a tensor twice",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors.push_back(m.tensors[0]); }); },
       {manifest, "listed twice"}},
      {"a file elsewhere",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.files[0].name = "../../x"; }); },
       {manifest, "files[0].name"}},
      {"a file that is not there",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].boxes[0].file = 2; }); },
       {manifest, "tensors[0]"}},
      {"too few checksums",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].boxes[0].checksums.pop_back(); }); },
       {manifest, "checksums, where"}},
      {"another dtype",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].dtype = DType::f64; }); },
       {manifest, "tensors[0]"}},
      {"another shape",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           SavedTensor& t = tensor(m, "layers.0.0.weight");
           t.shape = {3, 4};
           for (std::size_t i = 0; i < 2; ++i) t.boxes[i].box = i == 0 ? Box{{0, 0}, {3, 2}} : Box{{0, 2}, {3, 2}};
         });
       },
       {manifest, "layers.0.0.weight", "has shape [3, 4], the model's is [4, 3]"}},
      {"no moments",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           std::erase_if(m.tensors, [](const SavedTensor& t) { return t.name == "optimizer.exp_avg.layers.0.0.bias"; });
         });
       },
       {manifest, "optimizer.exp_avg.layers.0.0.bias", "is missing"}},
      {"one tensor too many",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) { tensor(m, "optimizer.exp_avg.layers.0.0.bias").name = "other"; });
       },
       {manifest, "optimizer.exp_avg.layers.0.0.bias", "is missing"}},
      {"another seed",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.seed = 5; }); },
       {manifest, "seed 5", "--seed 5"}},
      {"another optimizer",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.optimizer = OptimizerKind::sgd; }); },
       {manifest, "the plan trains with adamw, which keeps other states"}},
      {"another sequence length",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.seq_len = 9; }); },
       {manifest, "sequences of 9 tokens"}},
  };
  for (const Damage& d : cases) {
    CAPTURE(d.what);
    fs::remove_all(folder / "ckpt");
    fs::copy(folder / "base", folder / "ckpt", fs::copy_options::recursive);
    d.harm(folder / "ckpt/step-00000004", folder / "other/step-00000004");
    const std::map<std::string, std::string> before = files_below(folder / "ckpt");
    std::atomic<int> steps{0};
    const std::string said = failure([&] {
      RunOptions options = resuming(model, plan, folder / "ckpt");
      options.after_step = [&](const RankState&) { ++steps; };
      options.steps = 1;
      static_cast<void>(execute(model, plan, options));
    });
    CAPTURE(said);
    CHECK(holds(said, folder / "ckpt/step-00000004"));
    for (const std::string& part : d.says) CHECK(holds(said, part));
    CHECK(steps == 0);
    CHECK((files_below(folder / "ckpt") == before));
    // The one before it is as good as ever.
    CHECK(failure([&] { Checkpoint(folder / "ckpt/step-00000003").verify(); }).empty());
  }
}

TEST_CASE("SGD with momentum does not go on from SGD without it, nor the other way round") {
  const ModelGraph model = small_model();
  for (const double saved : {0.0, 0.9}) {
    const Folder folder;
    ShardingPlan plan = small_plan(), other = plan;
    plan.optimizer.kind = other.optimizer.kind = OptimizerKind::sgd;
    plan.optimizer.momentum = saved, other.optimizer.momentum = saved == 0 ? 0.9 : 0.0;
    static_cast<void>(train(model, plan, 2, saving(model, plan, folder / "ckpt")));
    CHECK(refusal([&] { return resuming(model, plan, folder / "ckpt"); }).empty());
    plan.optimizer.momentum = saved == 0 ? 0.0 : 0.5;  // another momentum keeps the same states
    CHECK(refusal([&] { return resuming(model, plan, folder / "ckpt"); }).empty());
    CHECK(holds(refusal([&] { return resuming(model, other, folder / "ckpt"); }),
                saved == 0 ? "was saved by sgd without momentum, the plan trains with sgd with momentum"
                           : "was saved by sgd with momentum, the plan trains with sgd without momentum"));
  }
}

TEST_CASE("a plan that cannot go on from a checkpoint is refused") {
  const ModelGraph model = small_model();
  const Folder folder;
  make_base(folder / "ckpt");
  const auto with = [&](auto change) {
    ShardingPlan plan = small_plan();
    change(plan);
    return refusal([&] { return resuming(model, plan, folder / "ckpt"); });
  };
  CHECK(with([](ShardingPlan&) {}).empty());
  CHECK(with([](ShardingPlan& p) { p.optimizer.lr = 1; }).empty());
  CHECK(holds(with([](ShardingPlan& p) { p.master_dtype = DType::f64; }), "is fp32, the plan's master dtype is fp64"));
  CHECK(holds(with([](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::sgd; }), "was saved by adamw"));
  CHECK(holds(with([](ShardingPlan& p) { p.seed = 9; }), "seed 1234, the plan's is 9"));
  CHECK(holds(refusal([&] {
                ModelGraph wider = model;
                wider.ops[1].shape.in += 0;
                wider.modules[1].class_name = "Other";
                return resuming(wider, small_plan(), folder / "ckpt");
              }),
              "is of another model"));
  SaveOptions save;
  save.directory = folder / "x";
  ShardingPlan partly = small_plan();
  partly.ignored = {"lm_head"};
  CHECK(
      holds(refusal([&] { return checkpoint_saver(model, partly, save); }), "ignored parameters are not written yet"));
}
