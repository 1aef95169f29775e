// What the tests of checkpoints share: a folder of their own, chains of linears with uneven sizes, and the whole state
// of a run, put together from what its ranks hold without the code that saves.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "executor/checkpoint/checkpoint.h"
#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/save.h"
#include "executor/kernels/host_kernel_set.h"
#include "models/input/error.h"
#include "planner/layout.h"
#include "tests/support/mlp_model.h"
#include "tests/support/refusal.h"
#include "tests/support/run_support.h"

namespace fsdp::testing {

// A folder of this test's own, removed at the end.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fsdp_plan_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path / name).string(); }
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Every file below a folder and what it holds.
inline std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[std::filesystem::relative(entry.path(), folder).string()] = read_bytes(entry.path().string());
  return files;
}

// PyTorch's test models are chains of linears such as 5-8-4-12; here each linear is a block, so that it can be a unit,
// and weights are named embed.weight, layers.0.0.weight, layers.1.0.weight and so on.
inline ModelGraph chain(const std::vector<std::int64_t>& sizes) {
  Mlp m{.blocks = {}};
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) m.blocks.push_back({sizes[i], sizes[i + 1]});
  return mlp(std::move(m));
}
inline ModelGraph even_chain() { return chain({5, 8, 4, 12}); }
inline ModelGraph uneven_chain() { return chain({5, 10, 15, 30, 5}); }

// Tensors by the names that a checkpoint gives them, whole, as bytes of the master dtype.
using State = std::map<std::string, std::string>;

// Element `index` (row-major) of a rank's slab of a parameter: which element of the whole one it is, by dimension.
inline std::int64_t whole_index(const std::vector<std::int64_t>& shape, std::size_t dim, std::int64_t begin,
                                std::int64_t rows, std::int64_t index) {
  std::int64_t whole = 0, stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const std::int64_t size = d == dim ? rows : shape[d];
    whole += (index % size + (d == dim ? begin : 0)) * stride;
    index /= size;
    stride *= shape[d];
  }
  return whole;
}

// Puts what one rank holds where it belongs. Only ranks of the first replica: the others would write the same.
// What a checkpoint calls the states of a plan's optimizer, before the parameter's name.
inline std::vector<std::string> saved_states(const ShardingPlan& plan) {
  if (plan.optimizer.kind == OptimizerKind::adamw) return {"optimizer.exp_avg.", "optimizer.exp_avg_sq."};
  if (plan.optimizer.momentum != 0) return {"optimizer.momentum_buffer."};
  return {};
}

inline void gather(const RankState& s, const ModelGraph& model, const ShardingPlan& plan, State& into) {
  const std::int64_t shard = plan.dialect == Dialect::ddp ? 0 : s.device.rank() % plan.shard();
  if (s.device.rank() >= (plan.dialect == Dialect::ddp ? 1 : plan.shard())) return;
  const std::int64_t width = size_of(plan.master_dtype);
  for (std::size_t u = 0; u < s.program.layouts.size(); ++u)
    for (const StatePart part : {StatePart::parameter, StatePart::first_state, StatePart::second_state}) {
      const BufferView view = s.view(static_cast<std::int32_t>(u), part);
      std::int64_t dense = 0;
      for (const ShardedParam& p : s.program.layouts[u].params) {
        const bool moment = part != StatePart::parameter;
        if (moment && (!p.trainable || static_cast<std::size_t>(part) > saved_states(plan).size())) continue;
        const Parameter& parameter = model.parameters[static_cast<std::size_t>(p.param)];
        std::string& whole =
            into.at((moment ? saved_states(plan)[static_cast<std::size_t>(part) - 1] : "") + parameter.name);
        const std::int64_t rows =
            std::max<std::int64_t>(0, std::min((shard + 1) * p.chunk_rows, p.rows) - shard * p.chunk_rows);
        for (std::int64_t i = 0; i < rows * p.row_elements; ++i) {
          const std::int64_t to =
              whole_index(parameter.shape, static_cast<std::size_t>(p.dim), shard * p.chunk_rows, rows, i);
          std::memcpy(whole.data() + to * width, view.data + ((moment ? dense : p.offset) + i) * width,
                      static_cast<std::size_t>(width));
        }
        dense += rows * p.row_elements;
      }
    }
}

inline State empty_state(const ModelGraph& model, const ShardingPlan& plan) {
  State state;
  for (const Parameter& p : model.parameters) {
    const std::string bytes(static_cast<std::size_t>(p.numel() * size_of(plan.master_dtype)), '\xFF');
    state[p.name] = bytes;
    if (!p.trainable) continue;
    for (const std::string& saved : saved_states(plan)) state[saved + p.name] = bytes;
  }
  return state;
}

// A run, with its whole state after every step.
struct Trained {
  RunResult result;
  std::map<std::int64_t, State> after;  // by steps of training done
};

inline Trained train(const ModelGraph& model, const ShardingPlan& plan, int steps, RunOptions options = {}) {
  Trained t;
  options.warmup_steps = 1;
  options.steps = std::max(1, steps - 1);
  REQUIRE(steps >= 2);
  options.keep_parameters = false;
  for (int s = 1; s <= steps; ++s) t.after[options.training.steps_done + s] = empty_state(model, plan);
  options.after_step = [&, save = options.after_step](const RankState& s) {
    gather(s, model, plan, t.after.at(s.steps_done));
    if (save) save(s);
  };
  t.result = execute(model, plan, options);
  return t;
}

inline RunOptions saving(const ModelGraph& model, const ShardingPlan& plan, const std::string& directory,
                         std::int64_t every = 0, std::int64_t keep = 0) {
  SaveOptions save;
  save.directory = directory;
  save.every = every;
  save.keep = keep;
  RunOptions options;
  options.after_step = checkpoint_saver(model, plan, save);
  static_cast<void>(claim_folder(save.files, directory, 0));
  return options;
}

inline RunOptions resuming(const ModelGraph& model, const ShardingPlan& plan, const std::string& path) {
  const auto saved = std::make_shared<const Checkpoint>(path);
  check_resumable(*saved, model, plan);
  RunOptions options;
  resume_from(saved, options.training);
  return options;
}

// All tensors of a checkpoint, whole.
inline State state_in(const Checkpoint& saved) {
  State state;
  for (const SavedTensor& t : saved.manifest().tensors) {
    std::string& bytes = state[t.name];
    bytes.resize(static_cast<std::size_t>(whole(t.shape).volume() * size_of(t.dtype)));
    saved.read(t, whole(t.shape), std::as_writable_bytes(std::span(bytes)));
  }
  return state;
}

inline std::vector<double> as_doubles(const std::string& bytes, DType type) {
  const std::int64_t n = static_cast<std::int64_t>(bytes.size()) / size_of(type);
  std::vector<double> values(static_cast<std::size_t>(n));
  std::string copy = bytes;
  host_kernel_set().convert(type, {reinterpret_cast<std::byte*>(copy.data()), static_cast<std::int64_t>(copy.size())},
                            DType::f64, {reinterpret_cast<std::byte*>(values.data()), n * size_of(DType::f64)}, n,
                            false);
  return values;
}

}  // namespace fsdp::testing
