#!/usr/bin/env bash
# Everything of fsdp_plan beside PyTorch (./dev torch-test). Arguments: the program, a folder for the environment. The
# package comes from a wheel, as a user has it; PyTorch and the libraries from python/requirements-test.txt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
program=$(realpath "$1")
[ -x "$2/bin/python" ] || python3 -m venv "$2"
python=$(realpath "$2")/bin/python
"$python" -m pip install --quiet --disable-pip-version-check -r "$root/python/requirements-test.txt"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wheel=$(python3 "$root/python/wheel.py" "$program" "$folder")
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel"
export OMP_NUM_THREADS=1
stage() { printf '\n-- %s\n' "$*"; }

stage "random plans through apply(), order of collectives beside show step"
export FSDP_PLAN_PROGRAM=$program
"$python" -W ignore "$here/applied_plans.py" --seed 1 --count 60 --seconds 600
"$python" -W ignore "$here/applied_plans.py" --seed 1 --count 20 --seconds 200 --no-kept --fsdp1
stage "two ranks: applied, checked, recorded, validated"
"$python" -W ignore "$here/two_ranks.py"
stage "four ranks: tensor ranks, products in 8 bits"
"$python" -W ignore "$here/tensor_ranks.py"
stage "published peaks of memory through export()"
"$python" -W ignore "$here/published_memory.py"
stage "exported models: memory beside a real run, byte by byte; a model of one's own on two ranks"
"$python" -W ignore "$here/exported_models.py"
"$python" -W ignore "$here/own_model.py"
stage "export(): what is refused, custom operators"
"$python" -W ignore "$here/bad_input.py"
stage "frameworks that shard by themselves, from emitted files: transformers, Accelerate"
"$python" -W ignore "$here/framework_units.py"
unset FSDP_PLAN_PROGRAM
stage "as a user, with the installed package: plain PyTorch, Trainer, Accelerate, Lightning"
cp "$root"/python/examples/* "$folder"
cd "$folder"
PATH=$(dirname "$python"):$PATH
flags="--model config.json --cluster dgx-h100 --gpus 2 --seq-len 128 --micro-batch 2 --implementation hf"
flags="$flags --param-dtype fp32 --replicate 1 --activation-checkpointing none --reshard-after-forward true"
flags="$flags --clip-norm 0.5"
two() { python -W ignore -m torch.distributed.run --nproc-per-node 2 --standalone "$@"; }
# shellcheck disable=SC2086
fsdp-plan plan $flags -o plan.json >/dev/null
fsdp-plan simulate --plan plan.json --model config.json --cluster dgx-h100 -o prediction.json >/dev/null
two plain.py config.json plan.json measurement.json 2>log || { cat log; exit 1; }
fsdp-plan validate prediction.json measurement.json
two trainer_run.py config.json plan.json trainer.json 2>log || { cat log; exit 1; }
# Trainer keeps a model's outputs, with the logits, through backward: more at the peak of so small a model.
fsdp-plan validate prediction.json trainer.json --memory-tolerance 5%
two accelerate_run.py config.json plan.json 2>log || { cat log; exit 1; }
two lightning_run.py config.json plan.json 2>log || { cat log; exit 1; }
stage "as a user: model.json from a configuration, planned for"
python -W ignore -m fsdp_plan export --hf config.json --seq-len 128 -o model.json
fsdp-plan plan --model model.json --cluster dgx-h100 --gpus 8 --micro-batch 2 -o exported.json
fsdp-plan simulate --plan exported.json --model model.json --cluster dgx-h100 >/dev/null
