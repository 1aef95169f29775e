#!/bin/sh
# The whole check of the cuda backend on a machine with a GPU, in one command and without a network: tests, calibration,
# eight plans that calibration never saw predicted and run, benchmarks. Writes one JSON record, which also says how many
# predictions are outside the tolerances. Needs only the programs in its folder (`./dev gpu-test` puts them there).
# Exit 0: all passed and ran in the predicted order and memory, 1: something did not, 3: there is no GPU.
#
#   gpu_check.sh RECORD.json
#   FSDP_PLAN_CHECK_BACKEND=host: the same on CPU ranks, with a tiny model, which tests this script
set -eu
[ $# -eq 1 ] || { echo "usage: gpu_check.sh RECORD.json" >&2; exit 2; }
record=$1
here=${FSDP_PLAN_CHECK_PROGRAMS:-$(cd "$(dirname "$0")" && pwd)}
program=$here/fsdp-plan backend=${FSDP_PLAN_CHECK_BACKEND:-cuda} limit=${FSDP_PLAN_CHECK_SECONDS:-480}
started=$(date +%s)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

spent() { echo $(($(date +%s) - started)); }
stage() { printf '\n== [%4d s] %s\n' "$(spent)" "$*"; }
left() { seconds=$((limit - $(spent))); [ "$seconds" -gt 5 ] || seconds=5; echo "$seconds"; }
at_most() { seconds=$(left); [ "$seconds" -lt "$1" ] || seconds=$1; echo "$seconds"; }
text() { printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')"; }
says() { grep -q "\"$1\": $2" "$work/out--json"; }  # of the last report
failed=0 outside=0

# --- which GPU --------------------------------------------------------------------------------------------------------
if [ "$backend" = cuda ]; then
  "$here/executor_cuda_test" --list-test-cases >"$work/there" 2>&1 || true
  if grep '^skipped, ' "$work/there"; then exit 3; fi
  gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1 || true)
  case $gpu in
    *H200*) cluster=dgx-h200 ;;
    *H100*) cluster=dgx-h100 ;;
    *A100*40*) cluster=dgx-a100-40 ;;
    *A100*) cluster=dgx-a100-80 ;;
    *B200*) cluster=dgx-b200 ;;
    *)
      cluster=${FSDP_PLAN_CHECK_CLUSTER:-}
      [ -n "$cluster" ] || {
        echo "no catalog cluster has the GPU '$gpu'; name one in FSDP_PLAN_CHECK_CLUSTER" >&2
        exit 3
      }
      ;;
  esac
  implementation="--implementation native-cuda" budget=${FSDP_PLAN_CHECK_BUDGET:-60s} steps=12
  model=qwen3-0.6b long=4096 short=1024
else
  gpu=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1) driver= cluster=host
  implementation= budget=1s steps=2 model=tiny-llama long=64 short=32
fi
stage "$gpu, $backend backend"

# --- tests ------------------------------------------------------------------------------------------------------------
: >"$work/tests"
for test in "$here"/executor_cuda_*test; do
  [ -x "$test" ] && [ "$backend" = cuda ] || continue
  stage "$(basename "$test")"
  begin=$(date +%s) code=0
  timeout "$(at_most 90)" "$test" >"$work/out" 2>&1 || code=$?  # one that hangs leaves time for the others
  tail -3 "$work/out"
  [ "$code" = 0 ] || { failed=$((failed + 1)); grep -B2 -A8 'ERROR' "$work/out" | head -60 || true; }
  printf '%s{"test":%s,"exit":%d,"seconds":%d,"summary":%s}' "$([ -s "$work/tests" ] && echo ,)" \
    "$(text "$(basename "$test")")" "$code" "$(($(date +%s) - begin))" \
    "$(text "$(sed -n 's/^\[doctest\] assertions: *//p' "$work/out" | head -1)")" >>"$work/tests"
done

# --- calibration ------------------------------------------------------------------------------------------------------
# measured NAME SECONDS FLAGS: costs of kernels of one type into NAME.json
named=; [ "$backend" = host ] || named="--cluster $cluster"
measured() {
  stage "calibrate, $1"
  file=$work/$1.json seconds=$2; shift 2
  # shellcheck disable=SC2086
  if ! timeout "$(left)" "$program" calibrate --backend "$backend" --ranks 1 $named --budget "$seconds" "$@" \
    -o "$file" 2>"$work/err"; then
    cat "$work/err"
    failed=$((failed + 1))
  fi
}
measured costs "$budget"
[ "$backend" = host ] || measured fp32 "$budget" --dtype fp32   # in which ddp computes
costs=$work/costs.json

# --- eight plans ------------------------------------------------------------------------------------------------------
: >"$work/plans"
# row NAME SEQ_LEN FLAGS ...
row() {
  name=$1 seq=$2; shift 2
  [ -f "$costs" ] || return 0
  stage "$name"
  code=0
  # shellcheck disable=SC2086
  {
    "$program" plan --model "$model" --cluster "$cluster" --gpus 1 --costs "$costs" $implementation \
      --seq-len "$seq" "$@" -o "$work/plan.json" >"$work/out" 2>&1 || [ $? = 1 ] || code=1
    [ "$code" != 0 ] ||
      "$program" simulate --plan "$work/plan.json" --model "$model" --cluster "$cluster" --costs "$costs" \
        $implementation -o "$work/prediction.json" >"$work/out" 2>&1 || [ $? = 1 ] || code=1
    [ "$code" != 0 ] ||
      timeout "$(left)" "$program" run --plan "$work/plan.json" --model "$model" --backend "$backend" \
        --steps "$steps" -o "$work/measurement.json" >"$work/out" 2>&1 || code=1
  }
  if [ "$code" != 0 ]; then
    tail -3 "$work/out"
    failed=$((failed + 1))
    report=null
  else
    for form in "" --json; do  # exit 1: outside a tolerance
      # shellcheck disable=SC2086
      "$program" validate "$work/prediction.json" "$work/measurement.json" --time-tolerance 3% \
        --memory-tolerance 0.5% $form >"$work/out$form" 2>"$work/err" || [ $? = 1 ] || cat "$work/err"
    done
    sed -n 1,6p "$work/out"
    report=$(cat "$work/out--json")
    says within true || outside=$((outside + 1))
    says order_equal true && says memory_equal true || {
      echo "order or memory is not the program's"
      failed=$((failed + 1))
    }
  fi
  printf '%s{"plan":%s,"seq_len":%s,"report":%s}' "$([ -s "$work/plans" ] && echo ,)" "$(text "$name")" "$seq" \
    "${report:-null}" >>"$work/plans"
}
fixed="--grad-accum 1 --replicate 1"
# shellcheck disable=SC2086
{
  row "block" "$long" $fixed --micro-batch 1 --wrap block --activation-checkpointing none
  row "block, two sequences" "$short" $fixed --micro-batch 2 --wrap block --activation-checkpointing none
  row "block, full checkpointing" "$long" $fixed --micro-batch 2 --wrap block --activation-checkpointing full
  row "titan, every second block checkpointed" "$long" $fixed --micro-batch 1 --wrap titan \
    --activation-checkpointing every-2
  row "root" "$short" $fixed --micro-batch 4 --wrap root --activation-checkpointing none
  row "block:4, accumulation 3" "$short" --replicate 1 --grad-accum 3 --micro-batch 2 --wrap block:4 \
    --activation-checkpointing none
  row "block, clipping" "$long" $fixed --micro-batch 1 --wrap block --activation-checkpointing full --clip-norm 1
  [ "$backend" = host ] || costs=$work/fp32.json
  row "ddp" "$short" --dialect ddp --grad-accum 1 --micro-batch 2 --activation-checkpointing none
}

# --- benchmarks -------------------------------------------------------------------------------------------------------
: >"$work/bench"
for bench in "$here"/*_bench; do
  [ -x "$bench" ] && [ "$backend" = cuda ] || continue
  stage "$(basename "$bench")"
  timeout "$(left)" "$bench" >"$work/out" 2>&1 || failed=$((failed + 1))
  cat "$work/out"
  printf '%s{"benchmark":%s,"said":[' "$([ -s "$work/bench" ] && echo ,)" "$(text "$(basename "$bench")")" \
    >>"$work/bench"
  comma=
  while IFS= read -r line; do printf '%s%s' "$comma" "$(text "$line")" >>"$work/bench"; comma=,; done <"$work/out"
  printf ']}' >>"$work/bench"
done

mkdir -p "$(dirname "$record")"
{
  printf '{"schema":"fsdp-plan/gpu-check/1","gpu":%s,"driver":%s,' "$(text "$gpu")" "$(text "$driver")"
  printf '"backend":%s,"program":%s,' "$(text "$backend")" "$(text "$("$program" --version)")"
  printf '"date":%s,"seconds":%d,' "$(text "$(date -u +%Y-%m-%d)")" "$(spent)"
  printf '"failed":%d,"outside_tolerance":%d,"tests":[%s],' "$failed" "$outside" "$(cat "$work/tests")"
  printf '"costs":%s,' "$(cat "$work/costs.json" 2>/dev/null || echo null)"
  printf '"plans":[%s],"benchmarks":[%s]}\n' "$(cat "$work/plans")" "$(cat "$work/bench")"
} >"$record"
said="$([ "$failed" = 0 ] && echo "nothing failed" || echo "$failed parts failed")"
stage "$record: $said; $outside of 8 plans outside the tolerances of 3 % (time) and 0.5 % (memory)"
[ "$failed" = 0 ] || exit 1
