// Where every element of a unit lives: sizes against PyTorch's rule (dim-0 chunks of ceil(d0 / W) rows), claims against
// hand-made trees.
#include "planner/layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

ShardingPlan plan_with(const ModelGraph& model, std::vector<Unit> units, std::int64_t shards) {
  ShardingPlan plan = naive_plan(model, {.ranks = shards, .seq_len = 8});
  plan.units = std::move(units);
  return plan;
}

std::vector<std::string> names(const UnitLayout& layout, const ModelGraph& model) {
  std::vector<std::string> list;
  for (const ShardedParam& p : layout.params) list.push_back(model.parameters[p.param].name);
  return list;
}

}  // namespace

TEST_CASE("chunks: torch.chunk of 17 rows over 8 ranks gives 3, 3, 3, 3, 3, 2, 0, 0") {
  ShardedParam p{.param = 0, .rows = 17, .row_elements = 5, .chunk_rows = 3, .offset = 0};
  const std::int64_t expected[] = {3, 3, 3, 3, 3, 2, 0, 0};
  for (int r = 0; r < 8; ++r) CHECK(p.local_rows(r) == expected[r]);
  CHECK(p.local_row_begin(5) == 15);
  CHECK(p.local_row_begin(7) == 17);
  CHECK(p.padded_shard() == 15);
  CHECK(p.local_elements(5) == 10);
}

namespace {

// One module that owns parameters of these shapes.
ModelGraph model_of_shapes(const std::vector<std::vector<std::int64_t>>& shapes) {
  ModelGraph model;
  model.name = "shapes";
  model.modules = {Module{"", "Shapes", -1, 0, 0}};
  for (std::size_t i = 0; i < shapes.size(); ++i)
    model.parameters.push_back({"p" + std::to_string(i), {}, {0}, shapes[i]});
  return model;
}

// Where element e of a parameter lies among the elements of rank r's slot of the gather buffer, [W, S_g].
struct Slot {
  std::int64_t rank, element;
};
Slot slot_of(const ShardedParam& p, const std::vector<std::int64_t>& shape, std::int64_t e) {
  std::int64_t inner = 1;  // elements per step of the sharded dimension
  for (std::size_t d = static_cast<std::size_t>(p.dim) + 1; d < shape.size(); ++d) inner *= shape[d];
  const std::int64_t outer = e / (inner * p.rows), row = e / inner % p.rows, column = e % inner;
  const std::int64_t rank = row / p.chunk_rows;
  return {rank, p.offset + (outer * p.chunk_rows + row - rank * p.chunk_rows) * inner + column};
}

}  // namespace

TEST_CASE(
    "grouped all-gather and reduce-scatter over 128 ranks: the shapes of PyTorch's comm test reassemble, padding and "
    "all") {
  const std::vector<std::vector<std::int64_t>> shapes = {{17, 257}, {17},      {64, 312}, {64},
                                                         {64, 64},  {512, 64}, {256},     {64, 297}};
  const ModelGraph model = model_of_shapes(shapes);
  for (const std::int64_t ranks : {128, 8, 2, 3}) {
    CAPTURE(ranks);
    ShardingPlan plan;
    plan.mesh = {{"shard", ranks}};
    plan.units = {{{""}}};
    const UnitLayout layout = unit_layouts(plan, model).front();
    // Rows of the padded shards, by hand: ceil(d0 / W) of each.
    std::int64_t expected = 0;
    for (const auto& shape : shapes) expected += (shape[0] + ranks - 1) / ranks * (shape.size() > 1 ? shape[1] : 1);
    CHECK(layout.shard_elements == expected);
    if (ranks == 128) CHECK(layout.shard_elements == 257 + 1 + 312 + 1 + 64 + 4 * 64 + 2 + 297);
    // Every element of every parameter has a place of its own, on the rank that torch.chunk gives it to.
    std::vector<char> taken(static_cast<std::size_t>(layout.shard_elements * ranks), 0);
    for (const ShardedParam& p : layout.params) {
      const auto& shape = shapes[static_cast<std::size_t>(p.param)];
      for (std::int64_t e = 0; e < p.numel(); ++e) {
        const Slot s = slot_of(p, shape, e);
        REQUIRE((s.rank < ranks && s.element < layout.shard_elements));
        const std::int64_t row = e / p.row_elements;
        REQUIRE((p.local_row_begin(s.rank) <= row && row < p.local_row_begin(s.rank) + p.local_rows(s.rank)));
        char& place = taken[static_cast<std::size_t>(s.rank * layout.shard_elements + s.element)];
        REQUIRE(place == 0);
        place = 1;
      }
    }
    CHECK(std::count(taken.begin(), taken.end(), 1) == layout.numel);
  }
}

TEST_CASE("a bias of one element becomes W of them; a scalar row count below W leaves ranks empty") {
  const ModelGraph model = model_of_shapes({{1}, {3, 5}});
  ShardingPlan plan;
  plan.mesh = {{"shard", 8}};
  plan.units = {{{""}}};
  const UnitLayout layout = unit_layouts(plan, model).front();
  CHECK(layout.shard_elements * 8 == 8 + 40);  // padding per parameter, not per unit: 16 would do for that
  CHECK(layout.params[1].local_rows(2) == 1);
  CHECK(layout.params[1].local_rows(3) == 0);
}

TEST_CASE("another dimension: W equal slabs, and what W does not divide is refused") {
  const std::vector<std::vector<std::int64_t>> shapes = {{5, 12}, {3, 4, 6}, {7}};
  const ModelGraph model = model_of_shapes(shapes);
  ShardingPlan plan;
  plan.mesh = {{"shard", 4}};
  plan.units = {{{""}}};
  plan.shard_dims = {{"p0", 1}, {"p1", 1}};
  const UnitLayout layout = unit_layouts(plan, model).front();
  CHECK(layout.params[0].padded_shard() == 5 * 3);
  CHECK(layout.params[1].padded_shard() == 3 * 1 * 6);
  CHECK(layout.shard_elements == 15 + 18 + 2);
  // p0's element [2, 7]: column 7 is on rank 2, its second of three; row-major within the slab.
  const Slot s = slot_of(layout.params[0], shapes[0], 2 * 12 + 7);
  CHECK(s.rank == 2);
  CHECK(s.element == 2 * 3 + 1);
  plan.shard_dims = {{"p1", 2}};
  CHECK_THROWS_AS((void)unit_layouts(plan, model), InputError);  // 6 columns on 4 ranks
}

TEST_CASE(
    "laws on generated plans: every parameter once, shards sum to the whole, padded shards are equal and large "
    "enough") {
  const ModelGraph models[] = {small_llama(), small_llama({.layers = 4, .tied = true})};
  const char* policies[] = {"root", "block", "block:2", "params:1", "params:300", "titan"};
  std::mt19937_64 random(20240607);
  INFO("seed 20240607");
  for (int i = 0; i < 60; ++i) {
    const ModelGraph& model = models[random() % 2];
    const auto shards = static_cast<std::int64_t>(1 + random() % 19);
    const std::string policy = policies[random() % 6];
    CAPTURE(policy);
    CAPTURE(shards);
    const ShardingPlan plan = plan_with(model, wrap(model, policy, "test"), shards);
    const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
    REQUIRE(layouts.size() == plan.units.size());
    std::vector<int> seen(model.parameters.size(), 0);
    std::int64_t total = 0;
    for (const UnitLayout& l : layouts) {
      std::int64_t offset = 0, numel = 0, local = 0;
      std::int32_t before = -1;
      for (const ShardedParam& p : l.params) {
        ++seen[p.param];
        CHECK(p.param > before);  // named_parameters() order
        CHECK(p.offset == offset);
        CHECK(p.numel() == model.parameters[p.param].numel());
        CHECK(p.chunk_rows * shards >= p.rows);
        CHECK((p.chunk_rows - 1) * shards < p.rows);  // no larger than needed
        offset += p.padded_shard();
        numel += p.numel();
        before = p.param;
      }
      for (std::int64_t r = 0; r < shards; ++r) {
        CHECK(l.local_elements(r) <= l.local_elements(0));
        local += l.local_elements(r);
      }
      CHECK(l.shard_elements == offset);
      CHECK(l.numel == numel);
      CHECK(local == numel);
      total += numel;
    }
    CHECK(total == model.parameter_count());
    CHECK(std::count(seen.begin(), seen.end(), 1) == static_cast<std::ptrdiff_t>(seen.size()));
    const std::vector<std::int32_t> unit_of = unit_of_parameters(layouts, model);
    for (std::size_t u = 0; u < layouts.size(); ++u) {
      for (const ShardedParam& p : layouts[u].params) CHECK(unit_of[p.param] == static_cast<std::int32_t>(u));
    }
  }
}

TEST_CASE("claims: inner units first, the root takes what is left") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan =
      plan_with(model, {{{"model.layers.0.mlp"}}, {{"model.layers.0"}}, {{"model.norm", "lm_head"}}, {{""}}}, 2);
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  CHECK(names(layouts[0], model) == std::vector<std::string>{"model.layers.0.mlp.gate_proj.weight",
                                                             "model.layers.0.mlp.up_proj.weight",
                                                             "model.layers.0.mlp.down_proj.weight"});
  CHECK(names(layouts[2], model) == std::vector<std::string>{"model.norm.weight", "lm_head.weight"});
  for (const std::string& name : names(layouts[1], model)) CHECK(name.starts_with("model.layers.0."));
  CHECK(layouts[1].params.size() == 6);  // q, k, v, o and two norms
  CHECK(names(layouts[3], model).front() == "model.embed_tokens.weight");
  CHECK(layouts[3].root);
  CHECK_FALSE(layouts[2].root);
}

TEST_CASE("a tied parameter lies in the unit that holds both of its modules, once") {
  const ModelGraph model = small_llama({.tied = true});
  const ShardingPlan plan = plan_with(model, {{{"model.embed_tokens", "lm_head"}}, {{""}}}, 2);
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  CHECK(names(layouts[0], model) == std::vector<std::string>{"model.embed_tokens.weight"});
  CHECK(layouts[0].op_begin == 0);                                              // from the embedding ...
  CHECK(layouts[0].op_end == static_cast<std::int32_t>(model.ops.size()) - 1);  // ... to the head
}

TEST_CASE("a tied parameter is claimed by the unit that comes first to any of its modules (check refuses such plans)") {
  const ModelGraph model = small_llama({.tied = true});
  for (const char* module : {"model.embed_tokens", "lm_head"}) {
    const std::vector<UnitLayout> layouts = unit_layouts(plan_with(model, {{{module}}, {{""}}}, 2), model);
    CHECK(names(layouts[0], model) == std::vector<std::string>{"model.embed_tokens.weight"});
  }
}

TEST_CASE(
    "op ranges: a group's runs from its first module's begin to its last one's end; the root's leaves out the loss") {
  const ModelGraph model = small_llama({.layers = 4});
  const ShardingPlan plan = plan_with(model, wrap_blocks(model, 2), 2);
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  const auto module = [&](const char* name) { return model.modules[model.find_module(name)]; };
  CHECK(layouts[0].op_begin == module("model.layers.0").op_begin);
  CHECK(layouts[0].op_end == module("model.layers.1").op_end);
  CHECK(layouts[1].op_begin == module("model.layers.2").op_begin);
  CHECK(layouts[2].op_begin == 0);
  CHECK(layouts[2].op_end == static_cast<std::int32_t>(model.ops.size()) - 1);
  CHECK(model.ops.back().kind == OpKind::cross_entropy);
}

TEST_CASE("inputs that require grad: ids do not, so the embedding's and the root's post-backward run at the end") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan = plan_with(model, wrap_titan(model), 2);
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  REQUIRE(plan.units.front().modules.front() == "model.embed_tokens");
  CHECK_FALSE(layouts.front().inputs_require_grad);
  CHECK_FALSE(layouts.back().inputs_require_grad);
  for (std::size_t u = 1; u + 1 < layouts.size(); ++u) CHECK(layouts[u].inputs_require_grad);
}

TEST_CASE("ddp keeps whole parameters") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan = naive_plan(model, {.ranks = 4, .seq_len = 8, .dialect = Dialect::ddp});
  CHECK(plan.shard() == 1);
  CHECK(plan.replicate() == 4);
  for (const UnitLayout& l : unit_layouts(plan, model)) {
    CHECK(l.shards == 1);
    CHECK(l.shard_elements == l.numel);
  }
}

TEST_CASE("a whole parameter is a unit of one shard, as an unsharded unit of it would be") {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{17, 5, 2}, {17}, {1, 3}, {}}) {
    Parameter p;
    p.shape = shape;
    const UnitLayout whole = whole_parameter(3, p);
    REQUIRE(whole.params.size() == 1);
    const ShardedParam& only = whole.params.front();
    CHECK(only.param == 3);
    CHECK(only.rows == (shape.empty() ? 1 : shape.front()));  // what a slab of dimension 0 counts
    CHECK(only.numel() == p.numel());
    CHECK(only.padded_shard() == p.numel());
    CHECK(only.local_elements(0) == p.numel());
    CHECK(whole.shards == 1);
    CHECK(whole.numel == p.numel());
    CHECK(whole.shard_elements == p.numel());
    CHECK(whole.local_elements(0) == p.numel());
    CHECK(whole.local_trained_elements(0) == p.numel());
    CHECK(whole.trained());
  }
  const ModelGraph model = small_llama();
  const ShardingPlan alone = naive_plan(model, {.ranks = 1, .seq_len = 8});
  for (const UnitLayout& unit : unit_layouts(alone, model))
    for (ShardedParam p : unit.params) {
      p.offset = 0;
      CHECK(whole_parameter(p.param, model.parameters[static_cast<std::size_t>(p.param)]).params.front() == p);
    }
}

TEST_CASE("padding that overflows is refused, not wrapped") {
  ModelGraph model = small_llama();
  model.parameters[0].shape = {3, std::int64_t{1} << 61};  // 4 padded rows on 4 ranks: 2^63 elements
  ShardingPlan plan;
  plan.mesh = {{"shard", 4}};
  plan.units = {{{""}}};
  CHECK_THROWS_AS((void)unit_layouts(plan, model), InputError);
}
