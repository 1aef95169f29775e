"""Says what is missing where PyTorch is not installed or too old. Imported before torch by what uses it."""
from fsdp_plan.errors import PlanError

LEAST, TESTED = (2, 6), (2, 15)

try:
    import torch
except ImportError:
    raise PlanError("this needs PyTorch (2.6 or later), which is not installed: pip install torch") from None

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if VERSION < LEAST:
    raise PlanError(f"this needs PyTorch 2.6 or later, and {torch.__version__} is installed")

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
