// fsdp-plan show: look inside a value. Here: the command itself, clusters and plans.
#include "cli/commands/show.h"
#include "cli/named.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/brief_json.h"
#include "cli/files.h"
#include "cli/report/emit_report.h"
#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "executor/checkpoint/size.h"
#include "models/catalog/node_topology.h"
#include "models/index.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/emit.h"
#include "planner/layout.h"
#include "planner/layout/unit_order.h"
#include "planner/program/describe.h"
#include "planner/tensor/local_model.h"
#include "simulator/analysis/times.h"
#include "viz/plan_graph.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string rate(double per_second, const std::string& text) { return per_second > 0 ? text : "-"; }

Json cluster_json(const ClusterSpec& c) {
  Json json = {{"schema", "fsdp-plan/cluster-view/1"},
               {"name", c.name},
               {"digest", c.digest()},
               {"gpu", c.gpu.name},
               {"gpus", c.gpus},
               {"gpus_per_node", c.gpus_per_node},
               {"nodes", c.nodes()},
               {"memory_bytes", c.gpu.memory.count()},
               {"usable_memory_bytes", c.gpu.usable_memory.count()},
               {"bf16_flops_per_s", c.gpu.bf16.count()},
               {"memory_bandwidth_bytes_per_s", c.gpu.memory_bandwidth.count()},
               {"intra_bus_bytes_per_s", c.intra_bus.count()},
               {"inter_bus_bytes_per_s", c.inter_bus.count()}};
  if (c.host_memory) json["host_memory_bytes"] = c.host_memory->count();
  if (c.price) json["price"] = {{"per_gpu_hour", c.price->per_gpu_hour}, {"currency", c.price->currency}};
  return json;
}

std::string cluster_text(const ClusterSpec& c) {
  const GpuSpec& g = c.gpu;
  std::vector<std::vector<std::string>> rows = {
      {"GPU", g.name},
      {"memory, as sold", human(g.memory)},
      {"memory, usable", human(g.usable_memory)},
      {"bf16, dense peak", rate(g.bf16.count(), human(g.bf16))},
      {"fp32, dense peak", rate(g.fp32.count(), human(g.fp32))},
      {"memory bandwidth", rate(g.memory_bandwidth.count(), human(g.memory_bandwidth))},
      {"ring inside a node, per GPU", rate(c.intra_bus.count(), human(c.intra_bus))},
      {"ring between nodes, per GPU", rate(c.inter_bus.count(), human(c.inter_bus))},
      {"context and one communicator", human(c.fixed_memory)},
      {"each further communicator", human(c.communicator_memory)},
      {"host memory of a node", c.host_memory ? human(*c.host_memory) : "not known"}};
  if (c.price) rows.push_back({"price of a GPU hour", text_of(*c.price)});
  return fmt::format("{}: {} GPUs, {} node{} of {}\n", c.name, c.gpus, c.nodes(), c.nodes() == 1 ? "" : "s",
                     c.gpus_per_node) +
         fitting_table({"what", ">value"}, rows);
}

int show_cluster(const ShowFlags& f) {
  if (!f.name) {
    if (f.file || f.shared.gpus || f.topology)
      throw InputError("show cluster", "no cluster is named", "give one, such as dgx-h100");
    if (f.json)
      print(stdout,
            json_lines({{"schema", "fsdp-plan/cluster-list/1"}, {"clusters", cluster_names()}, {"gpus", gpu_names()}}));
    else
      print(stdout,
            fmt::format("clusters: {}\ngpus: {}\n", fmt::join(cluster_names(), ", "), fmt::join(gpu_names(), ", ")));
    return kDone;
  }
  if (f.topology) {
    for (const auto& [given, flag] : {std::pair{f.shared.gpus.has_value(), "--gpus"}, {f.json, "--json"}})
      if (given) throw InputError(flag, "has no meaning with --topo, which prints a cluster file", "leave it out");
    print(stdout, cluster_file(*f.name, parse_node_topology(read_file(*f.topology), *f.topology), *f.topology));
    return kDone;
  }
  if (f.file) {
    if (f.shared.gpus)
      throw InputError("--gpus", "is no part of a cluster file", "give it to the command that reads the file");
    print(stdout, cluster_file(*f.name));
    return kDone;
  }
  const std::int64_t gpus = f.shared.gpus ? parse_count(*f.shared.gpus, kGpus) : 0;
  const ClusterSpec cluster = named_cluster(*f.name, gpus, Notes::printed, "show cluster");
  print(stdout, f.json ? cluster_json(cluster).dump(2) + "\n" : cluster_text(cluster));
  return kDone;
}

// A unit's dtypes of its own: "fp32, reduces fp16, returns bf16".
std::string own_dtypes(const Unit& unit) {
  std::vector<std::string> words;
  if (unit.param_dtype) words.emplace_back(name(*unit.param_dtype));
  if (unit.reduce_dtype) words.push_back(fmt::format("reduces {}", name(*unit.reduce_dtype)));
  if (unit.output_dtype) words.push_back(fmt::format("returns {}", name(*unit.output_dtype)));
  if (!unit.cast_forward_inputs) words.emplace_back("casts no inputs");
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string units_table(const ShardingPlan& plan, const ModelGraph* model) {
  std::vector<UnitLayout> layouts;
  if (model != nullptr) layouts = unit_layouts(plan, local_model(*model, plan));
  const bool own = std::any_of(plan.units.begin(), plan.units.end(), [](auto& u) { return !own_dtypes(u).empty(); });
  std::vector<std::vector<std::string>> rows;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Unit& unit = plan.units[u];
    std::vector<std::string> names = unit.modules;
    for (std::string& n : names)
      if (n.empty()) n = "(" + modules_text(plan, static_cast<std::int32_t>(u)) + ")";
    std::string modules = fmt::format("{}", fmt::join(names, ", "));
    if (unit.shard > 0) modules += ", over " + counted(unit.shard, "rank");
    const bool further = unit.group_of.has_value();
    if (further) modules += fmt::format(", gathered with {}", unit.group_of->empty() ? "(root)" : *unit.group_of);
    rows.push_back({std::to_string(u), modules, further ? "" : std::string(name(unit.reshard_after_forward))});
    if (own) rows.back().push_back(own_dtypes(unit));
    if (layouts.empty()) continue;
    rows.back().push_back(with_commas(layouts[u].numel));
    rows.back().push_back(with_commas(layouts[u].shard_elements));
  }
  std::vector<std::string> titles = {">unit", "modules", "reshard"};
  if (own) titles.emplace_back("dtypes of its own");
  if (layouts.empty()) return fitting_table(titles, rows) + "(--model adds sizes)\n";
  titles.emplace_back(plan.tensor() > 1 ? ">parameters per tensor rank" : ">parameters");
  titles.emplace_back(">parameters per shard");
  return fitting_table(titles, rows);
}

std::string checkpoint_line(const CheckpointSize& size) {
  return fmt::format("checkpoint: {} ({} bytes) of tensors, {}; headers and manifest come on top\n",
                     human(Bytes(size.bytes)), with_commas(size.bytes),
                     size.largest_rank_bytes
                         ? fmt::format("{} at most from one rank", human(Bytes(*size.largest_rank_bytes)))
                         : std::string("which `run` does not write"));
}

// Which parameters each unit of the plan holds, and the orders of prefetch: what a program needs to carry the plan out.
Json layout_json(const ShardingPlan& plan, const ModelGraph& model) {
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  Json units = Json::array(), parameters = Json::array();
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    Json held = Json::array();
    for (const ShardedParam& p : layouts[u].params) held.push_back(model.parameters[at(p.param)].name);
    units.push_back({{"modules", plan.units[u].modules},
                     {"text", unit_text(static_cast<std::int32_t>(u), plan)},
                     {"parameters", std::move(held)},
                     {"shard_elements", layouts[u].shard_elements}});
  }
  for (const Parameter& p : model.parameters)
    parameters.push_back({{"name", p.name}, {"aliases", p.aliases}, {"shape", p.shape}, {"trained", p.trainable}});
  return {{"schema", "fsdp-plan/layout-view/1"},
          {"model", model.name},
          {"model_digest", model.digest()},
          {"plan_digest", plan.digest()},
          {"forward_order", execution_order(layouts)},
          {"backward_order", order_of_ends(layouts)},
          {"units", std::move(units)},
          {"parameters", std::move(parameters)}};
}

void print_layout(const ShowFlags& f, const ShardingPlan& plan, const ModelGraph* model) {
  if (model == nullptr) throw InputError("--layout", "needs the model", "give --model");
  if (!f.json) throw InputError("--layout", "prints JSON only", "add --json");
  if (f.emit) throw InputError("--layout", "contradicts --emit", "leave out one of the two");
  print(stdout, json_lines(layout_json(plan, *model)));
}

void print_graph(const ShowFlags& f, const ShardingPlan& plan, const ModelGraph* model) {
  if (model == nullptr) throw InputError("--graph", "needs the model", "give --model");
  for (const auto& [given, flag] : {std::pair{f.json, "--json"}, {f.emit.has_value(), "--emit"}})
    if (given) throw InputError("--graph", std::string("contradicts ") + flag, "leave out one of the two");
  print(stdout, plan_graph(plan, *model, unit_layouts(plan, *model)));
}

int show_plan(const ShowFlags& f) {
  if (!f.name) throw InputError("show plan", "no plan is named", "give a plan.json");
  const PlanFile file = parse_plan_file(read_file(*f.name), *f.name);
  const ShardingPlan& plan = file.plan;
  check(plan, *f.name);
  std::optional<ModelGraph> model;
  if (f.shared.model) {
    model = model_from_flags(f.shared, plan.seq_len);
    check(plan, *model, *f.name);
  }
  if (f.layout) {
    print_layout(f, plan, model ? &*model : nullptr);
    return kDone;
  }
  if (f.graph) {
    print_graph(f, plan, model ? &*model : nullptr);
    return kDone;
  }
  if (f.emit) {
    if (!model) throw InputError("--emit", "needs the model", "give --model");
    EmitContext context;
    if (const auto& found = file.found_for) {
      const std::string note = *f.name + ": found_for";
      context.implementation = &find_implementation(found->implementation, found->compiled, note);
      if (found->async_tensor) context.implementation = &with_async_tensor(*context.implementation, note);
    }
    const Emitted emitted = emit(*f.emit, plan, *model, context);
    print(stderr, inexact_lines(*f.emit, emitted, plan, *model, context));
    print(stdout, emitted.text);
    return emitted.changes_prediction() ? kAnswerIsNo : kDone;
  }
  if (f.json) {
    print(stdout, to_json_text(file));
    return kDone;
  }
  print(stdout, fmt::format("{} for {} on {}, {} per sequence\n", plan_label(plan, model ? &*model : nullptr),
                            plan.model_name, counted(plan.ranks(), "rank"), counted(plan.seq_len, "token")));
  print(stdout,
        fmt::format("{} parameters, {} gradients reduced, {} shards; {}; digest {}{}\n\n", name(plan.param_dtype),
                    name(plan.reduce_dtype), kept_words(plan), optimizer_text(plan.optimizer), plan.digest(),
                    file.found_for ? "; found for " + printable(file.found_for->text()) : ""));
  print(stdout, units_table(plan, model ? &*model : nullptr));
  if (model) print(stdout, checkpoint_line(checkpoint_size(*model, plan)));
  return kDone;
}

}  // namespace

void add_show_cluster(const Command& show) {
  auto flags = std::make_shared<ShowFlags>();
  const Command command = show.add("cluster", "a cluster's GPU, nodes and links; without a name, the catalog");
  command.option("name", flags->name, "catalog name or file", {"CLUSTER", cluster_names});
  command.option("--gpus", flags->shared.gpus, "GPUs in all", "N");
  command.flag("--file", flags->file, "as a cluster file: change it, then give it to --cluster");
  command.option(
      "--topo", flags->topology,
      "as such a file, of a node with this GPU of the catalog: links, processors and network cards from what "
      "NCCL_TOPO_DUMP_FILE wrote there",
      "FILE");
  command.flag("--json", flags->json, "one JSON object");
  command.examples({"fsdp-plan show cluster", "fsdp-plan show cluster dgx-h100 --gpus 64",
                    "fsdp-plan show cluster dgx-h100 --file > mine.json",
                    "fsdp-plan show cluster h100-sxm-80 --topo node.xml > mine.json"});
  command.runs([flags] { return show_cluster(*flags); });
}

void add_show_plan(const Command& show) {
  auto flags = std::make_shared<ShowFlags>();
  const Command command = show.add("plan", "a plan's units; with --emit, as a script or config");
  command.option("file", flags->name, "plan.json", "PLAN");
  command.option("--model", flags->shared.model, "checks the plan against it and adds sizes", {"MODEL", model_names});
  add_model_flags(command, flags->shared);
  command.option("--emit", flags->emit, "print it as a script or config: " + join(emit_formats()),
                 {"FORMAT", emit_formats});
  command.flag("--layout", flags->layout,
               "with --json: the parameters of the model and of each unit, orders of prefetch");
  command.flag("--graph", flags->graph, "its units and what they do as a graph for Graphviz");
  command.flag("--json", flags->json, "one JSON object");
  command.examples({"fsdp-plan show plan plan.json --model llama3-8b",
                    "fsdp-plan show plan plan.json --model llama3-8b --graph | dot -Tsvg > plan.svg",
                    "fsdp-plan show plan plan.json --model llama3-8b --emit pytorch > train.py"});
  command.runs([flags] { return show_plan(*flags); });
}

void add_show(const Command& app) {
  const Command show = app.add("show", "look inside a model, cluster, plan, step or trace");
  show.needs_one_below();
  add_show_model(show);
  add_show_cluster(show);
  add_show_plan(show);
  add_show_step(show);
  add_show_trace(show);
}

}  // namespace fsdp::cli
