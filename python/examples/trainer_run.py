"""The same through Hugging Face's Trainer, which hands the model to Accelerate.

    cd python/examples              # config.json, plan.json: see plain.py; a plan of one micro-batch
    torchrun --nproc-per-node 2 trainer_run.py config.json plan.json measurement.json
"""
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from accelerate import DistributedType, FullyShardedDataParallelPlugin
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

import fsdp_plan


class Tokens(torch.utils.data.Dataset):
    """Random ones."""

    def __init__(self, vocabulary, length, count):
        torch.manual_seed(1)
        self.tokens = torch.randint(vocabulary, (count, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


def main(config, plan, measurement):
    os.environ["ACCELERATE_USE_FSDP"], os.environ["FSDP_VERSION"] = "true", "2"
    values = json.loads(open(config).read())
    with tempfile.TemporaryDirectory() as folder:
        plan = fsdp_plan.Plan.load(plan, config)
        sequences, = plan["micro_batches"]
        arguments = TrainingArguments(folder, per_device_train_batch_size=sequences, max_steps=4, report_to="none",
                                      logging_steps=1, save_strategy="no", use_cpu=not torch.cuda.is_available(),
                                      max_grad_norm=plan["clip_norm"] or 0.0, disable_tqdm=True)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values, use_cache=False)).to(arguments.device)
        step = fsdp_plan.apply(model, plan)
        trainer = Trainer(step.model, arguments, optimizers=(step.optimizer(), None),
                          train_dataset=Tokens(values["vocab_size"], plan["seq_len"], 4 * sequences * plan.ranks))
        if not torch.cuda.is_available():    # on processors Accelerate does not choose FSDP by itself
            state = trainer.accelerator.state
            state.distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        with fsdp_plan.record(step, measurement):
            trainer.train()
        fsdp_plan.check(trainer.model_wrapped, plan)
        if dist.get_rank() == 0:
            print("Trainer trained four steps under the plan")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
