#!/usr/bin/env bash
# A minute of fsdp_plan beside PyTorch, with the program FSDP_PLAN_PROGRAM. Exit 77: FSDP_PLAN_PYTHON (python3) has no
# transformers, or not the torch of tests/torch/requirements.txt. ./dev torch-test runs all of it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${FSDP_PLAN_PYTHON:-python3}
release=$(sed -n 's/^torch==\([0-9]*\.[0-9]*\)\..*/\1/p' "$here/../torch/requirements.txt")
if ! "$python" -c "import torch, transformers; assert torch.__version__.startswith('$release.')" 2>/dev/null; then
  echo "skipped: '$python' cannot import transformers and torch $release (set FSDP_PLAN_PYTHON)"
  exit 77
fi
"$python" -W ignore "$here/applied_plans.py" --seed 1 --count 8 --seconds 100 --no-kept
"$python" -W ignore "$here/two_ranks.py" --quick
"$python" -W ignore "$here/exported_models.py" own gpt2
"$python" -W ignore "$here/bad_input.py" 2>/dev/null
