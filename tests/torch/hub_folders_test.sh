#!/usr/bin/env bash
# hub_folders.py with the program (FSDP_PLAN_PROGRAM). Exit 77: FSDP_PLAN_PYTHON (python3) has no PyTorch, transformers
# or safetensors.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${FSDP_PLAN_PYTHON:-python3}
if ! "$python" -c "import torch, transformers, safetensors" 2>/dev/null; then
  echo "skipped: '$python' cannot import torch, transformers and safetensors (set FSDP_PLAN_PYTHON)"
  exit 77
fi
"$python" "$here/hub_folders.py" "$FSDP_PLAN_PROGRAM"
