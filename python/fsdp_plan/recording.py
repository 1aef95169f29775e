"""record(): what a few steps of a real run did, as measurement.json for `fsdp-plan validate`.

    with fsdp_plan.record(step, "measurement.json"):
        for batches in data:                 # four steps or more
            ...
            optimizer.step()

The first step settles. In the second, order and memory are recorded, and in the third torch.profiler records kernels
and collectives: both cost time. The others are timed. A step begins with the first forward after an optimizer's step.
"""
import contextlib
import json
import os
import pathlib
import statistics
import time

from fsdp_plan.needs_torch import torch
from fsdp_plan import memory
from fsdp_plan.dialects import ddp, fsdp1_order, fsdp2_order
from fsdp_plan.errors import PlanError
from fsdp_plan.plan import Plan
from fsdp_plan.profiling import StepProfile
from fsdp_plan.steps import Step
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

RECORDED = 1                                 # the step of which order and memory are recorded
PROFILED = RECORDED + 1                      # the step that torch.profiler looks at, where it is asked to
SCHEMA = "fsdp-plan/measurement/1"
LOGS = {"fsdp2": fsdp2_order, "fsdp1": fsdp1_order, "ddp": ddp}
# Stream of an action by its letter (simulator/records/rows.h).
STREAMS = {"all_gather": "G", "gather_copy_out": "D", "reduce_scatter": "R", "all_reduce": "A"}
TENSOR = "tensor "                           # begins what is issued over tensor ranks, on their stream T


def record(model, file, plan=None, *, implementation=None, source=None, lora=None, profile=True):
    """A context manager; see above. model: the Step of apply(), or a sharded model with its plan. file:
    measurement.json, written by rank 0 when the block ends without an exception. implementation: what the prediction
    names; by default the one that the plan was found for, else "traced" for an exported model (source) and "hf" for
    others (transformers' models in PyTorch). profile: False leaves torch.profiler out; three steps are enough then."""
    if isinstance(model, Step):
        model, plan = model.model, plan if plan is not None else model.plan
    if plan is None:
        raise PlanError("no plan to record for: give the Step of apply(), or plan.json")
    plan = Plan.load(plan, source if source is not None else model, lora)
    found = plan["found_for"] or {"implementation": plan.usual_implementation}
    return Recorder(model, file, plan, implementation or found["implementation"], profile)


class Recorder:
    def __init__(self, model, file, plan, implementation, profile):
        self.timed_from = PROFILED + profile         # the first step that is timed
        self.model, self.file, self.plan, self.implementation = model, file, plan, implementation
        self.optimizers, self.order, self.moments, self.marks, self.hooks = {}, [], [], [], []
        self.steps, self.micro_batch, self.stepped, self.recording, self.peak = 0, -1, True, False, 0

    # -- where steps begin and end

    def __enter__(self):
        # The folder must be there before hours of training are, and every rank must be part of the plan.
        refuse_missing_folder(self.file)
        self.log = LOGS[self.plan.dialect].OrderLog(self.model, self.plan, self.seen, self.around)
        self.device = self.log.device
        offloads = any(self.plan[key] for key in ("offload", "offload_optimizer", "offload_activations"))
        self.memory = memory.of_device(self.device, offloads)
        self.profile = StepProfile(self.device)
        self.log.__enter__()
        self.hooks = [self.model.register_forward_pre_hook(self.before_forward, prepend=True),
                      register_optimizer_step_pre_hook(self.before_optimizer),
                      register_optimizer_step_post_hook(self.after_optimizer)]
        return self

    def before_forward(self, module, args):
        if not module.training or not torch.is_grad_enabled():
            return
        if self.stepped:
            self.begin_step()
        self.micro_batch += 1

    def begin_step(self):
        self.stepped, self.micro_batch = False, -1
        if self.steps == RECORDED and self.timed_from > PROFILED:
            self.profile.prepare()
        if self.steps == PROFILED:
            self.profile.begin()
        self.marks.append(self.mark())
        self.recording = self.steps == RECORDED
        if self.recording:
            self.memory.begin(memory.kept_tensors(self.model, self.optimizers.values()))

    def before_optimizer(self, optimizer, args, kwargs):
        self.optimizers[id(optimizer)] = optimizer
        self.stop_recording()

    def stop_recording(self):
        if self.recording:
            self.recording, self.peak = False, self.memory.peak()
            self.memory.end()

    def after_optimizer(self, optimizer, args, kwargs):
        if not self.stepped and self.micro_batch >= 0:
            self.stepped, self.steps = True, self.steps + 1
            self.end = self.mark()
            self.profile.end()

    def mark(self):
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seen(self, action, unit):
        if self.recording:
            self.order.append((action, unit, self.micro_batch))
            self.moments.append(self.memory.now())

    def around(self):
        return self.memory.left_out() if self.recording else contextlib.nullcontext()

    # -- what is written

    def __exit__(self, kind, error, trace):
        self.stop_recording()
        self.profile.close()
        self.log.__exit__()
        for hook in self.hooks:
            hook.remove()
        if self.plan["offload_optimizer"] and self.steps:
            self.end = self.mark()           # behind the copies of states to host memory, which no hook sees
        if kind is not None:
            return
        needed = self.timed_from + 1
        if self.steps < needed:
            raise PlanError(f"record() saw {self.steps} whole steps, and needs {needed} or more: run more steps "
                            "inside of it, each with forward, backward and optimizer.step()"
                            + ", or leave the profiler out (profile=False)" * (self.steps == needed - 1 > PROFILED))
        self.profile.read()
        everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(self.of_rank(), everyone, dst=0)
        if dist.get_rank() == 0:
            whole(everyone)
            write(self.file, json.dumps(self.measurement(everyone)) + "\n")

    def of_rank(self):
        """What this rank saw: its place among the plan's ranks is that of its mesh."""
        nothing = {"start_bytes": 0, "points_bytes": []}
        streams = dict(STREAMS)
        if self.plan.dialect == "fsdp1" and self.plan.shard == 1:
            streams["all_reduce"] = "R"      # NO_SHARD reduces where others reduce-scatter
        def text(action, unit, i):
            if action.startswith(TENSOR):
                return f"T: {action.removeprefix(TENSOR)} tensor ranks mb {i}"
            return f"{streams[action]}: {action} {unit} mb {i}"
        observed = [a.removeprefix(TENSOR) in self.observed_actions() for a, *_ in self.order]
        texts = [text(*issued) for issued, is_seen in zip(self.order, observed) if is_seen]
        held = self.memory.library_bytes
        moments = [m - held for m, is_seen in zip(self.moments, observed) if is_seen and self.memory.is_seen]
        profiled = {} if self.profile.step is None else {"profiled_step": self.profile.step}
        return {**profiled, "rank": dist.get_rank(), "peak_allocated_bytes": self.peak - held, "undeclared_bytes": 0,
                "wire_bytes": 0,
                "order": texts, "timeline": {"duration_s": 0, "spans_s": []},
                "memory": {"init": nothing, "first_step": nothing, "steady_step": nothing}, "moments_bytes": moments,
                "steps_s": self.step_seconds()}

    def observed_actions(self):
        """A shard group of one rank has nothing to reduce: PyTorch copies. (Nor are those over tensor ranks compared
        then, which have the same name.)"""
        return [a for a in LOGS[self.plan.dialect].ACTIONS if a != "reduce_scatter" or self.plan.shard > 1]

    def step_seconds(self):
        """Of the steps after the recorded and the profiled one."""
        marks = self.marks[:self.steps] + [self.end]
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            seconds = [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]
        else:
            seconds = [b - a for a, b in zip(marks, marks[1:])]
        return seconds[self.timed_from:]

    def measurement(self, ranks):
        # The slowest rank's time of each step.
        seconds = [max(times) for times in zip(*(r.pop("steps_s") for r in ranks))]
        median, spread = statistics.median(seconds), 0.0
        if len(seconds) > 1:
            tenths = statistics.quantiles(seconds, n=10, method="inclusive")
            spread = (tenths[-1] - tenths[0]) / median
        layout = self.plan.layout
        return {"schema": SCHEMA,
                "provenance": {"model": layout["model"], "model_digest": layout["model_digest"],
                               "plan_digest": layout["plan_digest"], "cluster": "", "cluster_digest": "",
                               "costs_digest": "", "implementation": self.implementation, "implementation_digest": "",
                               "dialect": self.plan["dialect"]},
                "backend": "pytorch", "environment": environment(self.device, self.memory), "median_step_s": median,
                "noise": spread, "steps_s": seconds, "losses": [], "process_high_water_bytes": 0, "by_action": [],
                # No cost model prices PyTorch's kernels on processors.
                "observed": [*self.observed_actions(), *["memory"] * self.memory.is_seen,
                             *["step_time"] * (self.device.type == "cuda"),
                             *["collective_times", "kernel_times"] * ("profiled_step" in ranks[0])],
                "ranks": ranks}


def whole(ranks):
    """Profiles of all of them, or of none."""
    if not all("profiled_step" in rank for rank in ranks):
        for rank in ranks:
            rank.pop("profiled_step", None)


def environment(device, memory):
    """What a run depends on beside its plan."""
    parts = [f"torch {torch.__version__}", f"{dist.get_backend()}, {dist.get_world_size()} ranks"]
    if device.type == "cuda":
        parts += [torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}",
                  "NCCL " + ".".join(map(str, torch.cuda.nccl.version())),
                  f"reserved {torch.cuda.max_memory_reserved(device)} B", f"cuBLAS holds {memory.library_bytes} B"]
    else:
        parts.append(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads a rank")
    named = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS")
    return "; ".join(parts + [f"{name}={os.environ[name]}" for name in named if name in os.environ])


def refuse_missing_folder(file):
    """On every rank, where rank 0, which writes, has no such folder: the others may be on machines without it."""
    missing = [None]
    if dist.get_rank() == 0 and not pathlib.Path(file).absolute().parent.is_dir():
        missing = [f"{file}: its folder does not exist on rank 0, which writes the file: make it first"]
    dist.broadcast_object_list(missing, src=0)
    if missing[0]:
        raise PlanError(missing[0])


def write(file, text):
    """Whole or not at all."""
    beside = pathlib.Path(f"{file}.{os.getpid()}.part")
    try:
        beside.write_text(text)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
