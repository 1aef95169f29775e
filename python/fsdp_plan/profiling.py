"""One step under torch.profiler, for record(): kernels and collectives with their times, as the program reads a trace
(`fsdp-plan show trace`)."""
import os
import tempfile
import warnings

from fsdp_plan import program
from fsdp_plan.errors import PlanError
from fsdp_plan.needs_torch import torch


class StepProfile:
    """prepare() in the step before, begin(), end(), and then step: what measurement.json holds of it, or None where
    another profiler was at work already."""

    def __init__(self, device):
        self.device, self.profiler, self.step = device, None, None
        self.running, self.is_whole = False, False

    def prepare(self):
        """Some steps ahead: what profiles a GPU takes seconds to start."""
        if torch.autograd._profiler_enabled():
            return
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU] + [kinds.CUDA] * (self.device.type == "cuda")
        self.profiler = torch.profiler.profile(activities=activities)
        self.profiler.prepare_trace()

    def begin(self):
        if self.profiler is not None:
            self.synchronize()
            self.profiler.start_trace()
            self.running = True

    def end(self):
        if self.running:
            self.running = False
            self.synchronize()
            self.profiler.stop_trace()
            self.is_whole = True

    def close(self):
        """Where the block ends, whatever came of it: a profiler that was prepared must run before another can."""
        if self.profiler is not None and not self.is_whole:
            if not self.running:
                self.begin()
            self.end()
            self.profiler = None

    def read(self):
        """After close(): takes as long as the trace is large. A rank that cannot read its own goes on without it, as
        the others wait for it."""
        if self.profiler is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "trace.json")
            try:
                self.profiler.export_chrome_trace(file)
                self.step = program.ask_json("show", "trace", file)["step"]
            except (PlanError, OSError, RuntimeError) as error:
                warnings.warn(f"no times of kernels and collectives are kept: {error}", stacklevel=2)
        self.profiler = None

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
