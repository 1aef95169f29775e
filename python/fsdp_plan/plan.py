"""A plan.json, with what the program says of it for its model: which parameters each unit holds, and their order.

    plan = Plan.load("plan.json")                      # the model by its name in the plan
    plan = Plan.load("plan.json", model="config.json") # or the file that the plan was made for
    plan.units[3].parameters, plan.shard, plan["param_dtype"]
"""
import dataclasses
import json
import os
import pathlib
import tempfile

from fsdp_plan import program
from fsdp_plan.errors import PlanError

SCHEMA = "fsdp-plan/plan/1"
EXPORTED = '"fsdp-plan/model/1"'     # begins model.json
# What plan.json leaves out where it has this value.
USUAL = {"clip_norm": None, "clip_norm_type": 2, "checkpoint_policy": "full", "loss_chunks": 1, "offload": False,
         "offload_optimizer": False, "offload_activations": [], "ignored": [], "shard_dims": [],
         "reduce_scatter_buffers": 1, "separate_reduce_scatter": False, "force_sum_reduction": False,
         "share_comm_context": False, "backward_post": False, "limit_all_gathers": True, "use_orig_params": True,
         "trained_outermost": False, "reentrant": False,
         "found_for": None, "wrap": ""}


@dataclasses.dataclass(frozen=True)
class Unit:
    """One call of fully_shard. `text`: its name in measurements."""
    index: int
    modules: list
    parameters: list
    reshard_after_forward: object        # "auto", True, False, or a number of ranks
    text: str
    reshard_after_backward: bool = True
    unshard_in_backward: bool = True
    grad_sync: object = None             # instead of the plan's
    gradient_divide_factor: object = None
    forward_prefetch: tuple = ()         # first modules of units
    backward_prefetch: tuple = ()
    param_dtype: object = None           # instead of the plan's; of what it returns, if not as it computes
    reduce_dtype: object = None
    output_dtype: object = None
    cast_forward_inputs: bool = True

    @property
    def first(self):
        return self.modules[0]

    def dtypes(self, plan):
        """What it computes and reduces in."""
        return self.param_dtype or plan["param_dtype"], self.reduce_dtype or plan["reduce_dtype"]


@dataclasses.dataclass(frozen=True)
class Parameter:
    name: str
    shape: tuple
    aliases: list
    trained: bool


class Plan:
    """values: plan.json as it is; layout: `fsdp-plan show plan --layout --json` of it."""

    def __init__(self, values, layout, model):
        self.values, self.layout, self.model = values, layout, model
        own = next((i for i, u in enumerate(values["units"]) if "shard" in u), None)
        if own is not None:
            raise PlanError(f"units[{own}] has a mesh of its own (shard), which this package does not carry out: leave "
                            "it out")
        if values.get("trained_outermost"):
            raise PlanError("the plan puts a unit of all trained parameters around the others (trained_outermost), "
                            "which this package does not carry out: plan with --wrap 'block|adapters'")
        if values.get("reentrant"):
            raise PlanError("the plan's checkpoints are reentrant, around the units, which this package does not carry "
                            "out: plan with --activation-checkpointing full")
        self.units = [Unit(i, u["modules"], held["parameters"], u["reshard_after_forward"], held["text"],
                           **{k: v for k, v in u.items() if k not in ("modules", "reshard_after_forward")})
                      for i, (u, held) in enumerate(zip(values["units"], layout["units"], strict=True))]
        self.parameters = [Parameter(p["name"], tuple(p["shape"]), p["aliases"], p["trained"])
                           for p in layout["parameters"]]
        sizes = {d["name"]: d["size"] for d in values["mesh"]}
        self.replicate, self.shard = sizes.get("replicate", 1), sizes.get("shard", 1)
        self.tensor = sizes.get("tensor", 1)
        self.float8 = values.get("float8", {})       # recipe, all_gather, precomputed_scales
        # Where the loss is computed is the loop's own: it gives the model its targets, or does not. Threads are the
        # launcher's (OMP_NUM_THREADS).
        if set(values.get("loop", ())) - {"loss_in_model", "host_threads"}:
            raise PlanError("the plan says what the training loop does by hand (loop), which this package does not "
                            "carry out: leave it out")
        self.dialect = values["dialect"].partition("@")[0]
        if self.dialect == "fsdp1" and any(k in u for u in values["units"] for k in ("param_dtype", "reduce_dtype")):
            raise PlanError("units of fsdp1 have types of their own, which this package does not carry out: leave "
                            "param_dtype and reduce_dtype out there")

    def __getitem__(self, key):
        return self.values[key] if key in self.values else USUAL[key]

    @property
    def ranks(self):
        return self.replicate * self.shard * self.tensor

    @property
    def roots(self):
        """Units that no other holds: that of the whole model, or several, which share their streams."""
        names = [name for unit in self.units for name in unit.modules]
        return [unit for unit in self.units if is_outermost(unit.first, names)]

    @property
    def splits_loss(self):
        """Whether logits stay split over tensor ranks."""
        return self.tensor > 1 and self.values["tensor_plan"].get("loss_parallel", True)

    def kept_dtype(self, parameter):
        """What a parameter of the plan is kept in from step to step: what is trained may have a type of its own."""
        return self.values.get("trained_dtype", self["master_dtype"]) if parameter.trained else self["master_dtype"]

    @property
    def digest(self):
        return self.layout["plan_digest"]

    @property
    def usual_implementation(self):
        """What predictions of the plan begin with for PyTorch: an exported model has its own, products in 8 bits are
        known in one."""
        if self.float8:
            return "torchtitan"
        try:
            text = pathlib.Path(self.model).read_text()
        except (TypeError, OSError):
            return "hf"
        return "traced" if EXPORTED in text[:200] else "hf"

    def ends(self):
        """Units in the order in which their forwards end: inner before outer, the root last."""
        return [self.units[i] for i in self.layout["backward_order"]]

    def begins(self):
        """Units in the order in which their forwards begin: the root first."""
        return [self.units[i] for i in self.layout["forward_order"]]

    @staticmethod
    def load(plan, model=None, lora=None):
        """plan: a path, the text's dictionary, or a Plan. model: what `--model` was (a name, a file or folder), or a
        transformers model; without it, the plan's model_name. lora: what `--lora` was."""
        if isinstance(plan, Plan):
            return plan
        if not isinstance(plan, (dict, str, os.PathLike)):
            raise PlanError(f"plan: is a {type(plan).__name__}, and must be the path of plan.json, its dictionary, or "
                            "a Plan")
        with tempfile.TemporaryDirectory() as folder:
            file = plan
            if isinstance(plan, dict):
                file = os.path.join(folder, "plan.json")
                pathlib.Path(file).write_text(text_of(plan))
            values = read(file)
            return Plan(values, layout_of(file, values, model, lora, folder), model)


def is_outermost(name, names):
    """Whether no other of the names is that of a module around it."""
    return not any(name != other and (other == "" or name.startswith(other + ".")) for other in names)


def text_of(plan):
    try:
        return json.dumps(plan)
    except (TypeError, ValueError) as error:
        raise PlanError(f"plan: the dictionary is not that of a plan.json: {error}") from None


def read(file):
    try:
        values = json.loads(pathlib.Path(file).read_text())
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise PlanError(f"{file}: is no JSON: {error}") from None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise PlanError(f"{file}: is no plan ({SCHEMA}); `fsdp-plan plan ... -o plan.json` writes one")
    if not isinstance(values.get("model_name"), str):
        raise PlanError(f"{file}: model_name: is missing, or no text: write the plan again (`fsdp-plan plan`)")
    return values


def layout_of(file, values, model, lora, folder):
    named = model if isinstance(model, (str, os.PathLike)) else None
    if named is None and hasattr(model, "config") and not known(values["model_name"]):
        named = os.path.join(folder, "config.json")
        pathlib.Path(named).write_text(json.dumps(model.config.to_dict(), default=str))
    if named is None and not known(values["model_name"]):
        raise PlanError(f"the plan is for '{values['model_name']}', which the catalog does not have: give source=, "
                        "what --model was where it was planned for (model.json of export(), or a config.json)")
    named = named or values["model_name"]
    adapters = ["--lora", lora] if lora else []
    return program.ask_json("show", "plan", file, "--model", named, *adapters, "--layout")


def known(name):
    """Whether the program's catalog has a model of this name."""
    try:
        program.ask("show", "model", name, "--json")
    except PlanError:
        return False
    return True
