#!/usr/bin/env bash
# A wheel around the program that is built ($1), in a virtual environment of its own without PyTorch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if ! python3 -m venv "$folder/venv" >"$folder/log" 2>&1; then
  echo "skipped: python3 cannot make a virtual environment: $(tail -n 1 "$folder/log")"
  exit 77
fi
wheel=$(python3 "$here/../../python/wheel.py" "$program" "$folder")
case $wheel in *-py3-none-*.whl) ;; *) echo "the wheel's tag: $wheel"; exit 1 ;; esac
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
cd "$folder"
unset FSDP_PLAN_PROGRAM
expected=$("$program" --version)
said() { [ "$("$@" 2>&1)" = "$expected" ] || { echo "$*: $("$@" 2>&1)"; exit 1; }; }
said venv/bin/fsdp-plan --version
said venv/bin/python -m fsdp_plan --version
venv/bin/fsdp-plan plan --model tiny-llama --cluster dgx-h100 --gpus 2 --seq-len 64 --micro-batch 2 -o plan.json \
  >/dev/null
# Planning and reading plans need no PyTorch; what does says so. Refusals are the program's, with its words.
venv/bin/python - <<'PYTHON'
import importlib.util
import fsdp_plan
assert fsdp_plan.__version__ == "0.1.0", fsdp_plan.__version__
plan = fsdp_plan.Plan.load("plan.json")
assert plan.ranks == 2 and plan.units[-1].first == "" and plan.parameters[0].name == "model.embed_tokens.weight"
assert sorted(i for u in plan.units for i in u.parameters) == sorted(p.name for p in plan.parameters)


def refused(words, call):
    try:
        call()
    except fsdp_plan.PlanError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


refused("cannot be read", lambda: fsdp_plan.Plan.load("absent.json"))
open("other.json", "w").write("{}")
refused("is no plan", lambda: fsdp_plan.Plan.load("other.json"))
open("broken.json", "w").write("{")
refused("is no JSON", lambda: fsdp_plan.Plan.load("broken.json"))
values = dict(plan.values)
del values["model_name"]
refused("model_name: is missing", lambda: fsdp_plan.Plan.load(values))
refused("model_name: is missing", lambda: fsdp_plan.Plan.load(dict(values, model_name=7)))
refused("plan: is a list", lambda: fsdp_plan.Plan.load([plan.values]))
refused("plan: the dictionary is not that of", lambda: fsdp_plan.Plan.load(dict(plan.values, seed={1})))
for field in plan.values:  # each is needed, or is not: never an error of Python's own
    try:
        fsdp_plan.Plan.load({k: v for k, v in plan.values.items() if k != field})
    except fsdp_plan.PlanError:
        pass
refused("the plan was made for another model", lambda: fsdp_plan.Plan.load("plan.json", "small-llama"))
if importlib.util.find_spec("torch") is None:
    refused("pip install torch", lambda: fsdp_plan.apply)
    refused("pip install torch", lambda: fsdp_plan.export)
PYTHON
if venv/bin/fsdp-plan export absent:build -o model.json >said 2>&1 || [ -e model.json ] ||
    ! grep -q "pip install torch\|absent:build" said; then
  echo "fsdp-plan export: $(cat said)"
  exit 1
fi
echo "$(basename "$wheel"): installed, run, imported without PyTorch"
