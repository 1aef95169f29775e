#!/usr/bin/env python3
"""Records how much memory a step of transformers' own Trainer holds, as Accelerate shards the model, from a file of
Accelerate: what users run, whole.

Each case is a process of its own (Accelerate keeps its state for good), rank 0 of a fake process group of four.
memory_log.py counts bytes on the CPU as a GPU would hold them. Three things are told to Accelerate, because there is no
GPU: that the group is one of GPUs that FSDP shards over, that tensors stay on the CPU, and what the launcher says by
environment variables. autocast is that of a CPU, which leaves layer norms alone (on a GPU it makes their results fp32),
so no case has any. Of the third step: the most of its forward and of its backward (of the last micro-batch), and what
the Trainer holds when it begins.

    python tests/torch/record_trainer.py            compares with tests/torch/golden/trainer.json, prints what changed
    python tests/torch/record_trainer.py --write    records it again
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

GOLDEN = pathlib.Path(__file__).parent / "golden" / "trainer.json"
RANKS, SEQUENCES, LENGTH, STEPS = 4, 2, 256, 3

LLAMA = {"model_type": "llama", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704,
         "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096,
         "tie_word_embeddings": False}
TIED = dict(LLAMA, tie_word_embeddings=True)
QWEN3 = dict(LLAMA, model_type="qwen3", head_dim=32)
EXPERTS = dict(QWEN3, model_type="qwen3_moe", moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2)
ADAPTERS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def cases():
    """version: of FSDP. dtype: what the script loads the model in. gradient_checkpointing: the Trainer's."""
    base = dict(model=LLAMA, version=2, reshard="true", mixed_precision="bf16", dtype="float32", micro_batches=1,
                activation_checkpointing=False, gradient_checkpointing=False, adapters=False)
    first = dict(base, version=1, reshard="FULL_SHARD")
    return [
        dict(base, name="fsdp2"),
        dict(base, name="fsdp2-keep", reshard="false"),
        dict(base, name="fsdp2-recomputed", activation_checkpointing=True),
        dict(base, name="fsdp2-trainer-recomputes", gradient_checkpointing=True),
        dict(base, name="fsdp2-accumulates", micro_batches=2),
        dict(base, name="fsdp2-fp32", mixed_precision="no"),
        dict(base, name="fsdp2-loaded-in-bf16", mixed_precision="no", dtype="bfloat16"),
        dict(base, name="fsdp2-tied", model=TIED),
        dict(base, name="fsdp2-qwen3", model=QWEN3),
        dict(base, name="fsdp2-experts", model=EXPERTS),
        dict(base, name="fsdp2-adapters", adapters=True),
        dict(base, name="fsdp2-adapters-recomputed", adapters=True, gradient_checkpointing=True),
        dict(base, name="fsdp2-adapters-on-bf16", adapters=True, dtype="bfloat16"),
        dict(first, name="fsdp1"),
        dict(first, name="fsdp1-grad-op", reshard="SHARD_GRAD_OP"),
        dict(first, name="fsdp1-recomputed", activation_checkpointing=True),
        dict(first, name="fsdp1-trainer-recomputes", gradient_checkpointing=True),
        dict(first, name="fsdp1-accumulates", micro_batches=2),
        dict(first, name="fsdp1-tied", model=TIED),
        dict(first, name="fsdp1-adapters", adapters=True),
        dict(first, name="fsdp1-adapters-recomputed", adapters=True, gradient_checkpointing=True),
        dict(first, name="fsdp1-adapters-on-bf16", adapters=True, dtype="bfloat16"),
    ]


def environment(case):
    """What `accelerate launch` tells a rank."""
    second = case["version"] == 2
    return {"WORLD_SIZE": str(RANKS), "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29511", "ACCELERATE_USE_CPU": "true", "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": str(case["version"]), "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "FSDP_USE_ORIG_PARAMS": "true",
            "FSDP_CPU_RAM_EFFICIENT_LOADING": "false", "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
            "FSDP_RESHARD_AFTER_FORWARD": case["reshard"] if second else "FULL_SHARD",
            "FSDP_SHARDING_STRATEGY": "FULL_SHARD" if second else case["reshard"],
            "FSDP_ACTIVATION_CHECKPOINTING": str(case["activation_checkpointing"]).lower()}


def file_of(case):
    """The same as a file of Accelerate."""
    key = "fsdp_reshard_after_forward" if case["version"] == 2 else "fsdp_sharding_strategy"
    return "\n".join([
        "distributed_type: FSDP", "fsdp_config:",
        f"  fsdp_version: {case['version']}", "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        f"  {key}: {case['reshard']}", "  fsdp_use_orig_params: true",
        f"  fsdp_activation_checkpointing: {str(case['activation_checkpointing']).lower()}",
        f"mixed_precision: '{case['mixed_precision']}'", f"num_processes: {RANKS}", ""])


# ---- in a process of its own ----

def as_of_gpus():
    """Accelerate shards over groups of GPUs: this one is said to be one, and its tensors to stay on the CPU."""
    import accelerate.state as state
    import torch
    from accelerate.utils import DistributedType
    original = state.AcceleratorState.__init__

    def started(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type = state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
    state.AcceleratorState.__init__ = started

    def stay():
        for kept in (state.AcceleratorState, state.PartialState):
            kept._shared_state["device"] = torch.device("cpu")
    return stay


def model_of(case):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**case["model"], use_cache=False))
    model = model.to(getattr(torch, case["dtype"]))
    if case["adapters"]:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, lora_dropout=0.0, target_modules=ADAPTERS,
                                                 task_type="CAUSAL_LM"))
    return model


def counted(trainer_class, log, last):
    """The Trainer, its last micro-batch counted: `last` counts them."""
    import torch

    class Counted(trainer_class):
        calls, seen = 0, {}

        def compute_loss(self, model, inputs, *args, **kwargs):
            Counted.calls += 1
            for value in inputs.values():
                if isinstance(value, torch.Tensor):
                    log.leave_out(value)
            if Counted.calls == last:
                log.begin_step()
                self.seen["begin"] = log.total
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            if Counted.calls == last:
                self.seen["forward"], log.peak = log.peak, 0
            return loss

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            if Counted.calls == last:
                self.seen["backward"] = log.peak
            return loss
    return Counted


def train(case):
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    stay = as_of_gpus()
    from transformers import Trainer, TrainingArguments, default_data_collator
    from memory_log import MemoryLog
    model, log = model_of(case), MemoryLog()
    tokens = torch.ones(LENGTH, dtype=torch.long)
    data = [{"input_ids": tokens, "labels": tokens}] * (SEQUENCES * RANKS * STEPS * case["micro_batches"])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=SEQUENCES, gradient_accumulation_steps=case["micro_batches"],
            gradient_checkpointing=case["gradient_checkpointing"], max_steps=STEPS, report_to=[], save_strategy="no",
            bf16=case["mixed_precision"] == "bf16", use_cpu=True, optim="adamw_torch", disable_tqdm=True,
            logging_steps=1000)
        trainer = counted(Trainer, log, STEPS * case["micro_batches"])(
            model, arguments, train_dataset=data, data_collator=default_data_collator)
        stay()
        for buffer in model.buffers():
            log.leave_out(buffer)
        for name, module in model.named_modules():
            plain = name.removeprefix("base_model.model.")
            module.register_forward_pre_hook(lambda module, inputs, name=plain: log.modules.append(name))
            module.register_forward_hook(lambda module, inputs, result: (log.modules.pop(), None)[1], always_call=True)
        with log:
            for parameter in model.parameters():
                log.see(parameter.untyped_storage(), "parameter")
            del parameter
            trainer.train()
    return dict(trainer.seen, tables=log.largest_tables)


def main():
    import golden_file
    document = {"sequences": SEQUENCES, "seq_len": LENGTH, "adapters": f"rank=16,targets={'+'.join(ADAPTERS)}",
                "cases": []}
    for case in cases():
        done = subprocess.run([sys.executable, __file__, "--case", json.dumps(case)], capture_output=True, text=True,
                              env={**os.environ, **environment(case)})
        if done.returncode:
            raise SystemExit(f"{case['name']} failed:\n{done.stderr}")
        document["cases"].append({"config": case, "file": file_of(case), **json.loads(done.stdout.splitlines()[-1])})
    return golden_file.finish(GOLDEN, golden_file.text_of(document))


if __name__ == "__main__":
    if "--case" in sys.argv:
        warnings.filterwarnings("ignore")
        print(json.dumps(train(json.loads(sys.argv[sys.argv.index("--case") + 1]))))
    else:
        sys.exit(main())
