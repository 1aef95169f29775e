"""The same through Accelerate, whose prepare() leaves a model alone that is sharded already.

    cd python/examples              # config.json, plan.json: see plain.py
    torchrun --nproc-per-node 2 accelerate_run.py config.json plan.json [ACCUMULATION]

accumulate() decides by itself which micro-batches reduce gradients: check(micro_batch=...) ends the run with what
differs from the plan.
"""
import json
import sys

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from transformers import AutoConfig, AutoModelForCausalLM

import fsdp_plan


def loss_of(step, model, tokens):
    return fsdp_plan.chunked_loss(model(tokens[:, :-1]).logits, tokens[:, 1:], step.plan["loss_chunks"])


def main(config, plan, accumulation="1"):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=int(accumulation),
                              fsdp_plugin=plugin)
    if not torch.cuda.is_available():        # on processors Accelerate does not choose FSDP by itself
        accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    values = json.loads(open(config).read())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values, use_cache=False)).to(accelerator.device)

    step = fsdp_plan.apply(model, plan, source=config)
    model, optimizer = accelerator.prepare(step.model, step.optimizer())
    fsdp_plan.check(model, step.plan)        # Accelerate added and changed nothing

    torch.manual_seed(1 + step.data_rank)
    for i in range(3 * int(accumulation)):
        sequences = step.plan["micro_batches"][i % int(accumulation)]
        tokens = torch.randint(values["vocab_size"], (sequences, step.plan["seq_len"] + 1), device=accelerator.device)
        with accelerator.accumulate(model):
            fsdp_plan.check(model, step.plan, micro_batch=i % int(accumulation))
            accelerator.backward(loss_of(step, model, tokens))
            if accelerator.sync_gradients:   # the last micro-batch of a step
                step.clip()
            step.step(optimizer)
            optimizer.zero_grad()
    if accelerator.is_main_process:
        print("Accelerate trained three steps under the plan")
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
