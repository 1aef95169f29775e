#!/usr/bin/env bash
# PyTorch beside the program (FSDP_PLAN_PROGRAM) on the plans that differed once and on a few drawn ones: order, memory,
# fsdp1. Exit 77: FSDP_PLAN_PYTHON (python3) has no transformers, or not the torch of requirements.txt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${FSDP_PLAN_PYTHON:-python3}
release=$(sed -n 's/^torch==\([0-9]*\.[0-9]*\)\..*/\1/p' "$here/../requirements.txt")
if ! "$python" -c "import torch, transformers; assert torch.__version__.startswith('$release.')" 2>/dev/null; then
  echo "skipped: '$python' cannot import transformers and torch $release (set FSDP_PLAN_PYTHON)"
  exit 77
fi
"$python" "$here/random_plans.py" --seed 1 --count 12 --seconds 200
"$python" "$here/random_plans.py" --seed 1 --count 8 --seconds 200 --no-kept --memory
"$python" "$here/random_plans.py" --seed 1 --count 6 --seconds 200 --no-kept --memory \
  --families mixtral,glm4_moe,deepseek_v3,gpt_oss
"$python" "$here/random_plans.py" --seed 1 --count 8 --seconds 200 --no-kept --fsdp1
"$python" "$here/random_plans.py" --seed 1 --count 6 --seconds 200 --no-kept --memory --commands
