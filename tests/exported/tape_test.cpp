// Tapes of exported models against PyTorch: bytes alive after forward, the peaks, and the parameters' gradients are
// those of a real run on processors (tests/python/exported_models.py), byte by byte.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "models/index.h"
#include "planner/lowering/tape/tape.h"

using namespace fsdp;
using nlohmann::json;

namespace {

struct Golden {
  std::string name;
  json values;
  ModelGraph model;
};

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  for (const auto& file : std::filesystem::directory_iterator(FSDP_TESTS_DIR "/golden/exported")) {
    std::ifstream in(file.path());
    json values = json::parse(in);
    ModelGraph model = model_from_config(values["model"].dump(), "model.json");
    all.push_back({file.path().stem().string(), std::move(values), std::move(model)});
  }
  REQUIRE(all.size() >= 15);
  return all;
}

struct Bytes4 {
  std::int64_t saved = 0, forward_peak = 0, backward_peak = 0, end = 0;
};

// The batch does not count; parameters' gradients stay.
Bytes4 replay(const Tape& tape, const ModelGraph& model) {
  Bytes4 found;
  std::int64_t live = 0, most = 0;
  std::vector<char> has_gradient(model.parameters.size(), 0);
  const auto change = [&](std::int32_t v, int sign) {
    if (tape.values[at(v)].kind != BufferKind::batch) live += sign * tape.values[at(v)].bytes;
    most = std::max(most, live);
  };
  bool backward = false;
  for (const TapeOp& op : tape.ops) {
    if (op.action == Action::backward && !backward) {
      backward = true;
      found.saved = live, found.forward_peak = most, most = live;
    }
    for (const TapeArg& a : tape.args_of(op)) {
      if (a.kind != TapeArg::Kind::gradient || has_gradient[at(a.id)] != 0) continue;
      has_gradient[at(a.id)] = 1;
      const std::int64_t bytes = model.parameters[at(a.id)].numel() * 2;
      live += bytes, found.end += bytes, most = std::max(most, live);
    }
    for (std::uint32_t k = 0; k < op.inner.count; ++k) {
      const std::int32_t v = tape.inner[op.inner.begin + k];
      if (v >= 0) change(v, 1);
      else change(~v, -1);
    }
    for (std::uint32_t k = 0; k < op.frees.count; ++k) change(tape.frees[op.frees.begin + k], -1);
    for (std::uint32_t k = 0; k < op.late_frees.count; ++k) change(tape.late_frees[op.late_frees.begin + k], -1);
  }
  found.backward_peak = most;
  CHECK(live == found.end);
  return found;
}

Tape tape_of(const ModelGraph& model, std::int64_t sequences, const std::vector<std::int32_t>& checkpointed = {},
             CheckpointPolicy policy = CheckpointPolicy::full) {
  const Workload work{sequences, model.trace.seq_len, size_of(model.trace.dtype)};
  return make_tape(model, usual_implementation(model, false, false, ""), work, model.trace.dtype, checkpointed, policy);
}

std::vector<std::int32_t> blocks(const ModelGraph& model) {
  std::vector<std::int32_t> found;
  for (std::size_t m = 0; m < model.modules.size(); ++m)
    if (model.modules[m].block) found.push_back(static_cast<std::int32_t>(m));
  return found;
}

}  // namespace

TEST_CASE("the memory of an exported model is PyTorch's, byte by byte") {
  int compared = 0;
  for (const Golden& g : goldens()) {
    if (!g.values.contains("pytorch")) continue;
    CAPTURE(g.name);
    const json& theirs = g.values["pytorch"];
    const Bytes4 ours = replay(tape_of(g.model, g.values["sequences"]), g.model);
    CHECK(ours.saved == theirs["saved"]);
    CHECK(ours.forward_peak == theirs["forward_peak"]);
    if (g.values["early"]) CHECK(ours.backward_peak >= theirs["backward_peak"]);
    else CHECK(ours.backward_peak == theirs["backward_peak"]);
    CHECK(ours.end == theirs["end"]);
    ++compared;
  }
  CHECK(compared >= 10);
}

// A checkpoint holds all that its module was called with, also what the module does not read (ids of positions).
constexpr std::int64_t kMostUnread = 2048;

TEST_CASE("so it is where blocks are recomputed, but for arguments that nothing reads") {
  int compared = 0;
  for (const Golden& g : goldens()) {
    if (!g.values.contains("recomputed")) continue;
    CAPTURE(g.name);
    const json& theirs = g.values["recomputed"];
    const Bytes4 ours = replay(tape_of(g.model, g.values["sequences"], blocks(g.model)), g.model);
    const auto same = [&](std::int64_t found, const char* what) {
      CAPTURE(what);
      CHECK(found <= theirs[what].get<std::int64_t>());
      CHECK(found >= theirs[what].get<std::int64_t>() - kMostUnread);
    };
    same(ours.saved, "saved");
    same(ours.forward_peak, "forward_peak");
    if (!g.values["early"]) same(ours.backward_peak, "backward_peak");
    CHECK(ours.end == theirs["end"]);
    ++compared;
  }
  CHECK(compared >= 7);
}

TEST_CASE("recomputing blocks leaves less behind, ends with the same gradients, and lets go of everything") {
  for (const Golden& g : goldens()) {
    const std::vector<std::int32_t> checkpointed = blocks(g.model);
    if (checkpointed.empty() || g.name == "own") continue;  // whose blocks are single layers
    CAPTURE(g.name);
    const Bytes4 kept = replay(tape_of(g.model, 2), g.model);
    for (const CheckpointPolicy policy : {CheckpointPolicy::full, CheckpointPolicy::selective_op}) {
      const Bytes4 again = replay(tape_of(g.model, 2, checkpointed, policy), g.model);
      CHECK(again.end == kept.end);
      CHECK(again.saved <= kept.saved);
      if (policy == CheckpointPolicy::full) CHECK(again.saved < kept.saved);
    }
  }
}

TEST_CASE("two sequences take what is fixed and twice what one takes besides") {
  for (const Golden& g : goldens()) {
    CAPTURE(g.name);
    const Bytes4 one = replay(tape_of(g.model, 1), g.model), two = replay(tape_of(g.model, 2), g.model),
                 three = replay(tape_of(g.model, 3), g.model);
    CHECK(two.saved - one.saved == three.saved - two.saved);
    CHECK(two.saved > one.saved);
  }
}

TEST_CASE("other lengths, types and losses than were exported are refused") {
  const ModelGraph model = goldens().front().model;
  const Implementation& impl = usual_implementation(model, false, false, "");
  const auto refused = [&](Workload work, std::string_view field) {
    try {
      (void)make_tape(model, impl, work, model.trace.dtype, {});
      FAIL("not refused: " << field);
    } catch (const InputError& e) {
      CHECK(e.field() == field);
    }
  };
  refused({1, model.trace.seq_len + 1, 2}, "seq_len");
  refused({1, model.trace.seq_len, 4}, "param_dtype");
  refused({1, model.trace.seq_len, 2, 2}, "loss_chunks");
}
