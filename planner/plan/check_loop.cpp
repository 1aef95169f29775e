#include "planner/plan/check_loop.h"

#include <algorithm>
#include <string>

#include "models/graph/module_names.h"
#include "models/graph/output_layer.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostParts = 4096;

const Unit* unit_named(const ShardingPlan& plan, const std::string& name) {
  const auto named = [&](const Unit& u) { return !u.group_of && !u.modules.empty() && u.modules.front() == name; };
  const auto found = std::find_if(plan.units.begin(), plan.units.end(), named);
  return found == plan.units.end() ? nullptr : &*found;
}

void check_unit_names(const ShardingPlan& plan, const std::vector<std::string>& names, std::string_view where,
                      const std::string& at) {
  for (const std::string& name : names)
    if (unit_named(plan, name) == nullptr)
      refuse(where, at, "no unit's first module is '" + name + "'", "name units by their first module");
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse(where, at, "'" + *twice + "' is listed twice", "name each unit once");
}

void check_forwards(const ShardingPlan& plan, std::string_view where) {
  const int forwards = plan.loop.forwards;
  const auto count = static_cast<int>(plan.micro_batches.size());
  if (forwards < 1 || count % forwards != 0)
    refuse(
        where, "loop.forwards",
        std::to_string(forwards) + " forwards per backward do not divide " + std::to_string(count) + " micro-batches",
        "use a divisor of their number");
  if (forwards == 1 || forwards == count) return;
  bool waits = plan.grad_sync != GradSync::every;
  for (const Unit& u : plan.units) waits = waits || u.grad_sync.value_or(GradSync::every) != GradSync::every;
  if (waits)
    refuse(where, "loop.forwards",
           "gradients that wait for a later backward are not known where several forwards come before one",
           "set grad_sync to every, or forwards to the number of micro-batches");
}

// The model's own loss: of whole logits, and of one forward.
void check_loss(const ShardingPlan& plan, std::string_view where) {
  const auto alone = [&](bool broken, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, "loop.loss_in_model", problem, remedy);
  };
  alone(plan.loop.chunk_head, "the output layer runs outside of the model (loop.chunk_head), and so does its loss",
        "set it to false, or leave out loop.chunk_head");
  alone(plan.loss_chunks > 1,
        "a model computes its loss in one part, the plan has " + std::to_string(plan.loss_chunks) + " (loss_chunks)",
        "set it to false, or compute the loss in one part");
  alone(plan.loop.forwards > 1, "several forwards before one backward are not known beside it",
        "set it to false, or leave out loop.forwards");
}

// Is something done by hand? The model's own loss is not, nor are threads.
bool by_hand(LoopPlan loop) {
  loop.loss_in_model = false;
  loop.host_threads = 0;
  return loop != LoopPlan{};
}

}  // namespace

void check_loop(const ShardingPlan& plan, std::string_view where) {
  const LoopPlan& loop = plan.loop;
  if (loop.loss_in_model) check_loss(plan, where);
  if (!by_hand(loop)) return;
  const auto refuse_if = [&](bool broken, const std::string& name, const std::string& problem,
                             const std::string& remedy) {
    if (broken) refuse(where, name, problem, remedy);
  };
  refuse_if(plan.dialect != Dialect::fsdp2, "loop",
            std::string(name(plan.dialect)) + " has no units that a training loop could gather or reshard",
            "leave it out, or use fsdp2");
  refuse_if(plan.torch.before(2, 15), "loop", "what loops do by hand is known as it is in PyTorch 2.15 only",
            "leave it out, or use fsdp2");
  refuse_if(plan.float8 != Float8Plan{}, "loop", "what loops do by hand is not known beside products in 8 bits",
            "leave out one of them");
  refuse_if(plan.tensor() > 1, "loop", "what loops do by hand is not known beside tensor ranks",
            "leave it out, or use no tensor dimension");
  refuse_if(plan.offload && loop.last_backward, "loop.last_backward",
            "backwards that end without waiting are not known with gradients in host memory",
            "leave out one of loop.last_backward and offload");
  refuse_if(plan.offload && loop.post_optim_event, "loop.post_optim_event",
            "the optimizer of offloaded states runs on the host, which gathers need not wait for",
            "leave out one of loop.post_optim_event and offload");
  check_forwards(plan, where);
  check_unit_names(plan, loop.unshard, where, "loop.unshard");
  check_unit_names(plan, loop.reshard, where, "loop.reshard");
  for (const std::string& unit : loop.reshard)
    refuse_if(unit_named(plan, unit)->reshard_after_forward.ranks > 1, "loop.reshard",
              "resharding '" + unit + "' by hand, which is kept over a part of the ranks after forward, is not known",
              "set its reshard_after_forward to true, false or auto");
  refuse_if(loop.chunk_head && plan.loss_chunks > kMostParts, "loop.chunk_head",
            std::to_string(plan.loss_chunks) + " parts, each with operations of its own",
            "set loss_chunks to at most " + std::to_string(kMostParts));
  refuse_if(loop.chunk_head && plan.loss_chunks < 2, "loop.chunk_head", "the loss is computed in one part",
            "set loss_chunks to at least 2, or leave it out");
  for (const Unit& u : plan.units) {
    if (!loop.chunk_head || u.modules.empty()) continue;  // units without modules are refused with the model
    refuse_if(
        u.reshard_after_forward.ranks > 1, "loop.chunk_head",
        "'" + u.modules.front() + "' is kept over a part of the ranks after forward, which is not known beside it",
        "set its reshard_after_forward to true, false or auto");
  }
  refuse_if(loop.chunk_head && loop.forwards > 1, "loop.chunk_head",
            "a loss in parts has a backward of its own for each, and several forwards have one",
            "leave out one of loop.chunk_head and loop.forwards");
}

void check_loop(const ShardingPlan& plan, const ModelGraph& model, const std::vector<UnitLayout>& layouts,
                std::string_view where) {
  if (!plan.loop.chunk_head) return;
  const auto refuse_if = [&](bool broken, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, "loop.chunk_head", problem, remedy);
  };
  const std::int32_t head = chunked_head(model);
  refuse_if(head < 0, "the model does not end with one output layer and its loss alone",
            "leave it out: loss_chunks then splits the loss of whole logits");
  const std::vector<std::int32_t> unit_of = unit_of_parameters(layouts, model);
  const std::string& name =
      model.modules[static_cast<std::size_t>(model.ops[static_cast<std::size_t>(head)].module)].name;
  for (const std::string& module : plan.checkpointed)
    refuse_if(module.empty() || name == module || inside(name, module),
              "'" + name + "' runs outside of the model's forward, and is recomputed with '" + module + "'",
              "leave '" + module + "' out of checkpointed");
  for (const std::int32_t p : model.ops[static_cast<std::size_t>(head)].params) {
    const Parameter& parameter = model.parameters[static_cast<std::size_t>(p)];
    refuse_if(!parameter.aliases.empty(),
              "'" + parameter.name + "' is tied to '" + (parameter.aliases.empty() ? "" : parameter.aliases.front()) +
                  "', whose gradient comes with another backward, which is not known here",
              "leave it out: loss_chunks then splits the loss of whole logits");
    const std::int32_t u = unit_of[static_cast<std::size_t>(p)];
    const bool found = !name.empty() && u >= 0 && plan.units[static_cast<std::size_t>(u)].modules.back() == name;
    refuse_if(!found,
              "'" + name + "' runs outside of the model's forward, and is no unit of its own, nor the last of one",
              "make it one (--wrap titan does), or leave it out");
    const Unit& unit = plan.units[static_cast<std::size_t>(u)];
    refuse_if(unit.modules.size() > 1 && unit.grad_sync.value_or(plan.grad_sync) != GradSync::last,
              "reducing the gradients of '" + name + "' alone, without those of the unit's '" + unit.modules.front() +
                  "', is not known here",
              "set the unit's grad_sync to last, or make '" + name + "' a unit of its own");
  }
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m)
    refuse_if(plan.micro_batches[m] * plan.seq_len % plan.loss_chunks != 0,
              std::to_string(plan.loss_chunks) + " parts do not divide the " +
                  std::to_string(plan.micro_batches[m] * plan.seq_len) + " tokens of a micro-batch",
              "use a number of parts that does");
}

}  // namespace fsdp
