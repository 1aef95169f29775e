r"""A plan in plain PyTorch: applied, checked, measured. The model is one of transformers, from a configuration file.

    cd python/examples
    fsdp-plan plan --model config.json --cluster dgx-h100 --gpus 2 --seq-len 128 --micro-batch 2 \
        --implementation hf -o plan.json
    fsdp-plan simulate --plan plan.json --model config.json --cluster dgx-h100 -o prediction.json
    torchrun --nproc-per-node 2 plain.py config.json plan.json measurement.json
    fsdp-plan validate prediction.json measurement.json
"""
import json
import sys

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

import fsdp_plan


def loss_of(step, tokens):
    """In a function of its own: a name for the logits in the loop would keep them through the next forward."""
    logits = step.model(tokens[:, :-1]).logits
    return fsdp_plan.chunked_loss(logits, tokens[:, 1:], step.plan["loss_chunks"])


def main(config, plan, measurement):
    on_gpu = torch.cuda.is_available()
    # NCCL for what is on GPUs, gloo for the norm of gradients that an offloaded plan keeps in host memory.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)        # where fully_shard shards, before the first tensor is there
    values = json.loads(open(config).read())
    torch.manual_seed(0)                     # every rank draws the same weights
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values, use_cache=False)).to(device)

    step = fsdp_plan.apply(model, plan, source=config)
    fsdp_plan.check(step)

    optimizer = step.optimizer()
    torch.manual_seed(1 + step.data_rank)     # the ranks of a tensor group draw the same tokens
    with fsdp_plan.record(step, measurement):
        for _ in range(4):
            batches = [torch.randint(values["vocab_size"], (sequences, step.plan["seq_len"] + 1), device=device)
                       for sequences in step.plan["micro_batches"]]
            for weight, tokens in step.micro_batches(batches):
                (weight * loss_of(step, tokens)).backward()
            step.finish(optimizer)
    if dist.get_rank() == 0:
        print(f"{measurement} is written")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
