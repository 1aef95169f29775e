// fsdp-plan show model: its modules, folded where blocks repeat; with --costs, what each costs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/brief_json.h"
#include "cli/commands/show.h"
#include "cli/files.h"
#include "cli/named.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"
#include "planner/module_costs.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

// Parameters of each module, its children's included.
std::vector<std::int64_t> parameters_of(const ModelGraph& model) {
  std::vector<std::int64_t> counts(model.modules.size(), 0);
  for (const Parameter& p : model.parameters) {
    for (std::int32_t m = p.modules.front(); m >= 0; m = model.modules[static_cast<std::size_t>(m)].parent)
      counts[static_cast<std::size_t>(m)] += p.numbers();
  }
  return counts;
}

std::size_t subtree_end(const ModelGraph& model, std::size_t m) {
  std::size_t end = m + 1;
  while (end < model.modules.size() && model.modules[end].parent >= static_cast<std::int32_t>(m)) ++end;
  return end;
}

struct Row {
  std::size_t module;
  std::int64_t repeats = 1;  // this many equal blocks stand in this row
  std::string label;
};

bool equal_blocks(const ModelGraph& model, const std::vector<std::int64_t>& counts, std::size_t a, std::size_t b) {
  const std::size_t n = subtree_end(model, a) - a;
  if (!model.modules[a].block || !model.modules[b].block || subtree_end(model, b) - b != n) return false;
  for (std::size_t i = 0; i < n; ++i) {
    if (model.modules[a + i].class_name != model.modules[b + i].class_name || counts[a + i] != counts[b + i])
      return false;
  }
  return true;
}

std::vector<Row> folded(const ModelGraph& model, const std::vector<std::int64_t>& counts) {
  std::vector<Row> rows;
  for (std::size_t m = 0; m < model.modules.size();) {
    const std::string own = model.modules[m].name.empty() ? "(root)" : model.modules[m].name;
    std::size_t last = m;
    std::int64_t repeats = 1;
    for (std::size_t next = subtree_end(model, m); next < model.modules.size() && equal_blocks(model, counts, m, next);
         next = subtree_end(model, next)) {
      last = next;
      ++repeats;
    }
    if (repeats == 1) {
      rows.push_back({m, 1, own});
      ++m;
      continue;
    }
    const std::string& last_name = model.modules[last].name;
    rows.push_back(
        {m, repeats, fmt::format("{} .. {} ({} x)", own, last_name.substr(last_name.rfind('.') + 1), repeats)});
    for (std::size_t child = m + 1; child < subtree_end(model, m); ++child)
      rows.push_back({child, repeats, model.modules[child].name});
    m = subtree_end(model, last);
  }
  return rows;
}

// Empty for a model without experts.
std::string experts_line(const ModelGraph& model) {
  for (const Op& op : model.ops) {
    const Experts& e = op.shape.experts;
    if (op.kind != OpKind::moe_route) continue;
    const bool room = e.capacity_factor * static_cast<double>(e.top_k) >= static_cast<double>(e.count);
    if (op.shape.sigmoid || op.shape.of_chosen)  // not by `native`; shared experts are one module
      return fmt::format("{} experts, {} per token{}\n\n", e.count, e.top_k,
                         op.shape.sigmoid ? ", and shared ones for every token" : "");
    return fmt::format("{} experts, {} per token, capacity factor {}: {} by `native`\n\n", e.count, e.top_k,
                       e.capacity_factor,
                       room ? "nothing is dropped" : "choices that find their expert full are dropped");
  }
  return "";
}

std::string headline(const ModelGraph& model, std::int64_t seq_len) {
  std::int64_t blocks = 0;
  for (const Module& m : model.modules) blocks += m.block ? 1 : 0;
  return fmt::format(
             "{}: {} parameters, family {}, {} blocks, vocabulary {}, {} flops per token at sequence {}, digest {}\n\n",
             model.name, with_commas(model.parameter_count()), model.family, blocks, with_commas(model.vocab),
             human_count(model_flops_per_token(model, seq_len)), seq_len, model.digest()) +
         experts_line(model);
}

std::string plain_table(const ModelGraph& model) {
  const std::vector<std::int64_t> counts = parameters_of(model);
  std::vector<std::vector<std::string>> rows;
  for (const Row& row : folded(model, counts)) {
    rows.push_back({row.label, model.modules[row.module].class_name, with_commas(counts[row.module])});
  }
  return fitting_table({"module", "class", ">parameters"}, rows);
}

std::string costs_table(const ModelGraph& model, const std::vector<ModuleCost>& costs) {
  std::vector<std::vector<std::string>> rows;
  for (const Row& row : folded(model, parameters_of(model))) {
    const ModuleCost& c = costs[row.module];
    const auto time = [](Seconds s) { return s.count() > 0 ? human(s) : std::string("-"); };
    rows.push_back({row.label, with_commas(c.parameters), human(c.shard), time(c.all_gather), time(c.reduce_scatter),
                    time(c.forward), time(c.backward), human(c.saved)});
  }
  return fitting_table(
      {"module", ">parameters", ">shard", ">all-gather", ">reduce-scatter", ">forward", ">backward", ">saved"}, rows);
}

Json model_json(const ModelGraph& model, std::int64_t seq_len, const std::vector<ModuleCost>& costs) {
  const std::vector<std::int64_t> counts = parameters_of(model);
  Json modules = Json::array();
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    Json row = {{"name", model.modules[m].name},
                {"class", model.modules[m].class_name},
                {"block", model.modules[m].block},
                {"parameters", counts[m]}};
    if (!costs.empty()) {
      const ModuleCost& c = costs[m];
      row.update({{"shard_bytes", c.shard.count()},
                  {"all_gather_s", c.all_gather.count()},
                  {"reduce_scatter_s", c.reduce_scatter.count()},
                  {"forward_s", c.forward.count()},
                  {"backward_s", c.backward.count()},
                  {"saved_bytes", c.saved.count()}});
    }
    modules.push_back(std::move(row));
  }
  Json parameters = Json::array();
  for (const Parameter& p : model.parameters)
    parameters.push_back({{"name", p.name}, {"shape", p.shape}, {"aliases", p.aliases}});
  Json view = {{"schema", "fsdp-plan/model-view/1"},
               {"name", model.name},
               {"family", model.family},
               {"digest", model.digest()},
               {"parameters", model.parameter_count()},
               {"vocab", model.vocab},
               {"max_seq_len", model.max_seq_len.value_or(0)},
               {"seq_len", seq_len},
               {"flops_per_token", model_flops_per_token(model, seq_len)},
               {"modules", std::move(modules)},
               {"named_parameters", std::move(parameters)}};
  if (!model.notes.empty()) view["notes"] = model.notes;
  return view;
}

int list_models(bool json) {
  if (json)
    print(
        stdout,
        json_lines({{"schema", "fsdp-plan/model-list/1"}, {"models", model_names()}, {"families", model_families()}}));
  else
    print(stdout, fmt::format("models: {}\nfamilies of a config.json: {}\n", fmt::join(model_names(), ", "),
                              fmt::join(model_families(), ", ")));
  return kDone;
}

int show_model(const ShowFlags& given) {
  if (!given.name) {
    if (given.costs || given.shared.seq_len)
      throw InputError("show model", "no model is named", "give one, such as llama3-8b");
    return list_models(given.json);
  }
  ShowFlags f = given;
  f.shared.model = f.name;
  if (!f.costs) {
    if (f.shared.cluster || f.shared.gpus) throw InputError("--cluster", "needs --costs", "add --costs");
    const std::int64_t asked = f.shared.seq_len ? parse_tokens(*f.shared.seq_len, kSeqLen) : 0;
    const ModelGraph model = model_from_flags(f.shared, asked);
    const std::int64_t seq_len = asked > 0 ? asked : model.max_seq_len.value_or(2048);
    print(stdout, f.json ? json_lines(model_json(model, seq_len, {})) : headline(model, seq_len) + plain_table(model));
    return kDone;
  }
  if (!f.shared.cluster) f.shared.cluster = "dgx-h100";
  const Setup setup = resolve_setup(f.shared);
  const ShardingPlan plan = plan_from_flags(f.shared, setup);
  const std::vector<ModuleCost> costs =
      module_costs({setup.model, plan, *setup.implementation, setup.cluster, setup.costs});
  if (f.json) {
    print(stdout, json_lines(model_json(setup.model, setup.seq_len, costs)));
    return kDone;
  }
  print(stdout, headline(setup.model, setup.seq_len) + costs_table(setup.model, costs));
  print(stdout,
        fmt::format("\nper GPU, {} of {}, micro-batch {}, each operation alone; collectives as if the module were one "
                    "unit; {} implementation.\n",
                    setup.cluster.gpus, setup.cluster.name, plan.micro_batches.front(), setup.implementation->name));
  return kDone;
}

}  // namespace

void add_show_model(const Command& show) {
  auto flags = std::make_shared<ShowFlags>();
  const Command command = show.add("model", "a model's modules and parameters; without a name, the catalog");
  command.option("name", flags->name, "catalog or hub name, config.json or its folder, or generic (with its sizes)",
                 {"MODEL", model_names});
  add_model_flags(command, flags->shared);
  command.flag("--costs", flags->costs, "per module: shard, all-gather, reduce-scatter, compute, memory");
  command.option("--cluster", flags->shared.cluster, "with --costs; default dgx-h100", {"CLUSTER", cluster_names});
  command.option("--gpus", flags->shared.gpus, "with --costs; default one node", "N");
  command.option("--costs-file", flags->shared.costs, "with --costs: costs.json of `calibrate`", "FILE");
  command.option("--implementation", flags->shared.implementation, "with --costs; default as in `plan`",
                 {"NAME", implementation_names});
  command.option("--micro-batch", flags->shared.micro_batch, "with --costs; default 1", "N");
  command.option("--tensor", flags->shared.tensor, "with --costs: ranks that each layer is split over; default 1", "N");
  command.option("--seq-len", flags->shared.seq_len, "tokens per sequence, such as 8k; default: what the model allows",
                 "TOKENS");
  command.flag("--json", flags->json, "one JSON object");
  command.examples({"fsdp-plan show model", "fsdp-plan show model llama3-8b --costs --seq-len 8k"});
  command.runs([flags] { return show_model(*flags); });
}

}  // namespace fsdp::cli
