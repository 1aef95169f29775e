// Lightning: a LightningModule that shards its model by this very plan, in configure_model(). It says everything.
#include <fmt/format.h>

#include <algorithm>

#include "planner/emit/formats.h"

namespace fsdp {
namespace {

constexpr const char* kLightningModule = R"(

class Planned(lightning.LightningModule):
    """model: whole, before it is sharded. loss: of its output and a batch. source: what --model was."""

    def __init__(self, model, loss, source=None):
        super().__init__()
        self.model, self.loss, self.source, self.step = model, loss, source, None

    def configure_model(self):
        if self.step is None:                # Lightning asks again
            self.step = fsdp_plan.apply(self.model, PLAN, source=self.source)

    def configure_optimizers(self):
        return self.step.optimizer()

    def training_step(self, batch, index):
        self.step.set_switches((index + 1) % len(PLAN["micro_batches"]) == 0)
        return self.loss(self.model(batch), batch)

    def on_before_optimizer_step(self, optimizer):
        self.step.clip()


def trainer(**more):
    """Give no gradient_clip_val: the plan's clipping is in on_before_optimizer_step."""
    strategy = ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1)
    return lightning.Trainer(devices=GPUS, num_nodes=NODES, strategy=strategy,
                             accumulate_grad_batches=len(PLAN["micro_batches"]), **more)
)";

// The same JSON without the character that ends Python's text: outside of JSON's own texts there is none.
std::string without_apostrophes(const std::string& json) {
  std::string out;
  for (const char c : json)
    if (c == '\'') out += "\\u0027";
    else out += c;
  return out;
}

}  // namespace

Emitted emit_lightning(const ShardingPlan& planned, const ModelGraph& model, const EmitContext& context) {
  Inexactness out(planned);
  const ShardingPlan plan = leave_out_tensor(out, planned);
  if (plan.dialect != Dialect::fsdp2)
    throw InputError(setting("emit"), "'lightning' shards under ModelParallelStrategy, and the plan is ddp",
                     "use pytorch or accelerate, or plan with --dialect fsdp2");
  out.elsewhere("model", "the model is yours, with the plan's parameters: apply() refuses another");
  if (plan.loss_chunks > 1)
    out.elsewhere("loss_chunks",
                  fmt::format("the loss is yours: fsdp_plan.chunked_loss(logits, targets, {})", plan.loss_chunks));
  const auto& sizes = plan.micro_batches;
  if (std::any_of(sizes.begin(), sizes.end(), [&](auto s) { return s != sizes.front(); }))
    out.elsewhere("micro_batches", "micro-batches of different sizes weigh the same in Lightning's mean");
  out.elsewhere("seed", fmt::format("lightning.seed_everything({}) in your script", plan.seed));
  if (plan.offload_optimizer)
    out.changes(
        &ShardingPlan::offload_optimizer, false, "offload_optimizer",
        "optimizer states in host memory between steps: Lightning steps by itself, and they stay on the device");
  leave_out_float8(out, plan);
  leave_loss_to_script(out, plan);
  say_frozen(out, model);
  say_implementation(out, context, "your model is what is trained");
  const std::int64_t node = std::min(plan.ranks(), context.gpus_per_node.value_or(plan.ranks()));
  if (!context.gpus_per_node)
    out.elsewhere("cluster", "how many GPUs a machine has is not known here: set GPUS and NODES");
  Emitted emitted{{}, std::move(out.list), std::move(out.written), false};
  emitted.text = header(planned, model, "Lightning: import Planned and trainer; needs the package fsdp_plan",
                        emitted.cannot_express);
  emitted.text +=
      "import json\n\nimport fsdp_plan\nimport lightning\nfrom lightning.pytorch.strategies import "
      "ModelParallelStrategy\n\nPLAN = json.loads(r'''\n" +
      without_apostrophes(to_json_text(emitted.written)) + "''')\n";
  emitted.text +=
      fmt::format("RANKS, GPUS, NODES = {}, {}, {}\n", plan.ranks(), node, (plan.ranks() + node - 1) / node);
  emitted.text += kLightningModule;
  return emitted;
}

}  // namespace fsdp
