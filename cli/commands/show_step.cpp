// fsdp-plan show step: the operations that one rank issues, in host order.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/brief_json.h"
#include "cli/commands/show.h"
#include "cli/files.h"
#include "cli/named.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"
#include "planner/job.h"
#include "simulator/analysis/known_differences.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

const Step& step_of(const Program& program, const Text& which) {
  if (!which || *which == "steady") return program.steady_step;
  if (*which == "first") return program.first_step;
  if (*which == "init") return program.init;
  throw InputError("--which", "'" + *which + "' is not a step", "give init, first or steady");
}

// Bytes allocated (sign +1) or freed (-1) around an operation.
std::int64_t changed(const Step& step, const Operation& op, const Program& program, int sign) {
  std::int64_t bytes = 0;
  const auto add = [&](int of) {
    return [&bytes, &program, sign, of](std::int32_t b) {
      bytes += of == sign ? program.buffers[static_cast<std::size_t>(b)].bytes : 0;
    };
  };
  memory_events(step, op, add(1), add(-1));
  return bytes;
}

std::string waits_text(const Step& step, const Operation& op) {
  std::vector<std::string> texts;
  for (const std::int32_t w : step.waits_of(op))
    texts.push_back(w >= 0 ? std::to_string(w) : fmt::format("{} of the step before", -1 - w));
  return fmt::format("{}", fmt::join(texts, ","));
}

struct View {
  const Program& program;
  const Step& step;
  const ShardingPlan& plan;
  const ModelGraph& model;
  std::size_t count;  // operations shown
  bool buffers;       // also what each operation allocates, reads, writes and frees
};

std::string step_text(const View& v) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < v.count; ++i) {
    const Operation& op = v.step.ops[i];
    const std::int64_t allocates = changed(v.step, op, v.program, 1);
    const std::int64_t frees = changed(v.step, op, v.program, -1);
    rows.push_back({std::to_string(i), op.host_only ? "host" : std::string(name(op.stream)),
                    describe(op, v.program, v.plan, v.model), waits_text(v.step, op),
                    allocates > 0 ? human(Bytes(allocates)) : "", frees > 0 ? human(Bytes(frees)) : ""});
  }
  std::string out = fitting_table({">op", "stream", "what", "waits for", ">allocates", ">frees"}, rows);
  if (v.count < v.step.ops.size()) out += fmt::format("... and {} more\n", v.step.ops.size() - v.count);
  return out;
}

std::string reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::average: return "average";
    case ReduceOp::sum: return "sum";
    case ReduceOp::scaled_sum: break;
  }
  return "scaled-sum";
}

const char* communicator(Communicator c) {
  switch (c) {
    case Communicator::shard: return "shard";
    case Communicator::shard_reduce: return "shard_reduce";
    case Communicator::reshard: return "reshard";
    case Communicator::replicate: return "replicate";
    case Communicator::world: return "world";
    case Communicator::tensor: return "tensor";
    case Communicator::own_shard: return "own_shard";
    case Communicator::own_replicate: return "own_replicate";
    case Communicator::none: break;
  }
  return "none";
}

// Is there still a reduction of the buffer to come in this micro-batch?
bool before_reduction(const View& v, const Operation& op, std::int32_t buffer) {
  for (const Operation* o = &op + 1; o != v.step.ops.data() + v.step.ops.size(); ++o) {
    if (o->unit != op.unit || o->micro_batch != op.micro_batch) continue;
    const auto args = v.step.args_of(*o);
    const bool copies = o->action == Action::divide_gradient && args.size() > 1;  // one rank: the copy is the reduction
    if (!copies && o->action != Action::reduce_scatter && o->action != Action::all_reduce) continue;
    if (args[0].buffer == buffer) return true;
  }
  return false;
}

// What an operation does to memory, in order: b: buffer b is allocated; -1 - b: freed. With it, for a program that
// compares the step with another account of it: the arguments, the communicator, the reduction and the divisor.
void add_buffers(Json& json, const Operation& op, const View& v) {
  std::vector<std::int32_t> memory, args;
  memory_events(
      v.step, op, [&](std::int32_t b) { memory.push_back(b); }, [&](std::int32_t b) { memory.push_back(-1 - b); });
  for (const Arg& a : v.step.args_of(op)) args.push_back(a.buffer);
  json["memory"] = memory;
  json["args"] = args;
  if (op.unit < 0) return;
  const UnitLayout& layout = v.program.layouts[static_cast<std::size_t>(op.unit)];
  if (is_collective(op.action)) json["communicator"] = communicator(op.comm);
  if (op.action == Action::reduce_scatter) json["reduction"] = reduction(layout.scale.reduce_scatter);
  if (op.action == Action::all_reduce) json["reduction"] = reduction(layout.scale.all_reduce);
  if (op.action == Action::divide_gradient) {
    json["divisor"] = args.size() > 1                         ? layout.scale.divide_copy
                      : before_reduction(v, op, args.front()) ? layout.scale.divide_before
                                                              : layout.scale.divide_after;
  }
}

Json buffers_json(const Program& program) {
  Json list = Json::array();
  for (const Buffer& b : program.buffers)
    list.push_back({{"bytes", b.bytes},
                    {"dtype", std::string(name(b.dtype))},
                    {"kind", std::string(name(b.kind))},
                    {"pool", std::string(name(b.pool))},
                    {"host", b.host},
                    {"unit", b.unit},
                    {"parameter", b.param}});
  return list;
}

// Where PyTorch is known to hold other bytes.
Json differences_json(const View& v) {
  Json list = Json::array();
  for (const KnownDifference& d : known_differences(v.program, v.plan, v.model))
    list.push_back({{"kind", std::string(name(d.kind))}, {"bytes", d.bytes}});
  return list;
}

Json step_json(const View& v) {
  Json ops = Json::array();
  for (std::size_t i = 0; i < v.count; ++i) {
    const Operation& op = v.step.ops[i];
    std::vector<std::int32_t> waits, before;  // operations of this step, of the step before
    for (const std::int32_t w : v.step.waits_of(op)) (w >= 0 ? waits : before).push_back(w >= 0 ? w : -1 - w);
    ops.push_back({{"op", i},
                   {"stream", op.host_only ? "host" : std::string(name(op.stream))},
                   {"action", std::string(name(op.action))},
                   {"what", describe(op, v.program, v.plan, v.model)},
                   {"micro_batch", op.micro_batch},
                   {"unit", op.unit},
                   {"waits", waits},
                   {"allocates_bytes", changed(v.step, op, v.program, 1)},
                   {"frees_bytes", changed(v.step, op, v.program, -1)}});
    if (!before.empty()) ops.back()["waits_of_step_before"] = before;
    if (v.buffers) add_buffers(ops.back(), op, v);
  }
  Json json = {{"schema", "fsdp-plan/step-view/1"},
               {"plan_digest", v.program.plan_digest},
               {"model_digest", v.program.model_digest},
               {"implementation", v.program.implementation},
               {"rank", v.program.rank},
               {"ops", std::move(ops)}};
  if (v.buffers) json["buffers"] = buffers_json(v.program);
  if (v.buffers) json["known_differences"] = differences_json(v);
  return json;
}

int show_step(const ShowFlags& f) {
  if (!f.shared.plan) throw InputError("--plan", "is missing", "give a plan.json");
  if (!f.shared.model) throw InputError("--model", "is missing", "give the model that the plan was made for");
  if (f.buffers && !f.json) throw InputError("--buffers", "prints JSON only", "add --json");
  const PlanFile file = plan_from_file(f.shared);
  const ShardingPlan& plan = file.plan;
  const ModelGraph model = model_from_flags(f.shared, plan.seq_len);
  check(plan, model, *f.shared.plan);
  const Implementation& implementation = named_implementation(f.shared, model, &file, false);
  Programs programs(resolve(model, plan, implementation, {}));
  const Program& program = programs.of(0);
  const Step& step = step_of(program, f.which);
  const std::size_t all = step.ops.size();
  const auto asked = f.first ? static_cast<std::size_t>(parse_count(*f.first, "--first", 1, INT32_MAX)) : all;
  const View view{program, step, plan, programs.job().model, std::min(asked, all), f.buffers};
  print(stdout, f.json ? json_lines(step_json(view)) : step_text(view));
  return kDone;
}

}  // namespace

void add_show_step(const Command& show) {
  auto flags = std::make_shared<ShowFlags>();
  const Command command = show.add("step", "the operations that a plan is lowered to, in host order");
  command.option("--plan", flags->shared.plan, "plan.json", "FILE");
  command.option("--model", flags->shared.model, "the model that the plan was made for", {"MODEL", model_names});
  add_model_flags(command, flags->shared);
  command.option("--implementation", flags->shared.implementation, "torchtitan (default), native, ..., as in `plan`",
                 {"NAME", implementation_names});
  command.flag("--compile", flags->shared.compile, "the implementation's compiled variant");
  command.flag("--async-tensor", flags->shared.async_tensor, "with it: products over tensor ranks in parts");
  command.option("--which", flags->which, "init, first or steady (default)",
                 {"STEP", [] {
                    return std::vector<std::string>{"init", "first", "steady"};
                  }});
  command.option("--first", flags->first, "this many operations only", "N");
  command.flag("--json", flags->json, "one JSON object");
  command.flag("--buffers", flags->buffers, "with --json: every buffer, and what each operation does with them");
  command.examples({"fsdp-plan show step --plan plan.json --model llama3-8b --first 20",
                    "fsdp-plan show step --plan plan.json --model llama3-8b --which first --json"});
  command.runs([flags] { return show_step(*flags); });
}

}  // namespace fsdp::cli
