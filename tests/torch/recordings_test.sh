#!/usr/bin/env bash
# recordings.py with the program (FSDP_PLAN_PROGRAM). Exit 77: FSDP_PLAN_PYTHON (python3) has no PyTorch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${FSDP_PLAN_PYTHON:-python3}
if ! "$python" -c "import torch" 2>/dev/null; then
  echo "skipped: '$python' cannot import torch (set FSDP_PLAN_PYTHON)"
  exit 77
fi
"$python" "$here/recordings.py" "$FSDP_PLAN_PROGRAM"
