"""The same through Lightning, whose ModelParallelStrategy lets configure_model() shard the model.

    cd python/examples              # config.json, plan.json: see plain.py
    torchrun --nproc-per-node 2 lightning_run.py config.json plan.json

Lightning counts micro-batches (accumulate_grad_batches) and divides the loss by their number, but leaves the switches
of gradient synchronisation alone: set_switches() sets them as planned.
"""
import json
import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from transformers import AutoConfig, AutoModelForCausalLM

import fsdp_plan


class Planned(lightning.LightningModule):
    def __init__(self, config, plan):
        super().__init__()
        self.config, self.plan, self.step = config, plan, None
        self.values = json.loads(open(config).read())
        torch.manual_seed(0)                 # every rank draws the same weights
        self.model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**self.values, use_cache=False))

    def configure_model(self):
        if self.step is None:                # Lightning asks again
            self.step = fsdp_plan.apply(self.model.to(self.device), self.plan, source=self.config)

    def configure_optimizers(self):
        return self.step.optimizer()

    def training_step(self, tokens, index):
        plan = self.step.plan
        self.step.set_switches((index + 1) % len(plan["micro_batches"]) == 0)
        fsdp_plan.check(self.model, plan, micro_batch=index % len(plan["micro_batches"]))
        return fsdp_plan.chunked_loss(self.model(tokens[:, :-1]).logits, tokens[:, 1:], plan["loss_chunks"])

    def on_before_optimizer_step(self, optimizer):
        self.step.clip()

    def train_dataloader(self):
        plan = self.step.plan
        torch.manual_seed(1 + self.step.data_rank)
        batches = [torch.randint(self.values["vocab_size"], (sequences, plan["seq_len"] + 1))
                   for _ in range(3) for sequences in plan["micro_batches"]]
        return torch.utils.data.DataLoader(batches, batch_size=None)


def main(config, plan):
    with open(plan) as file:
        micro_batches = len(json.load(file)["micro_batches"])
    ranks = int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu", devices=ranks, max_epochs=1,
        strategy=ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1),
        accumulate_grad_batches=micro_batches, use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    module = Planned(config, plan)
    trainer.fit(module)
    fsdp_plan.check(module.model, module.step.plan)      # Lightning added and changed nothing
    if trainer.is_global_zero:
        print(f"Lightning trained {trainer.global_step} steps under the plan")


if __name__ == "__main__":
    main(*sys.argv[1:])
