#!/bin/sh
# Step-time error of predictions on this machine: calibrates once (micro-benchmarks only), then predicts, runs and validates eight plans
# of one model that calibration never saw. Wants an otherwise idle machine; prints one row per plan.
#
#   tests/host_accuracy.sh [PROGRAM] [MODEL] [SEQ_LEN] [RANKS]
set -eu
program=${1:-build/release/fsdp-plan} model=${2:-small-llama} seq=${3:-128} ranks=${4:-2}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" calibrate --backend host --ranks "$ranks" -o "$folder/costs.json" 2>/dev/null >/dev/null

printf '%-58s %10s %10s %8s  %s\n' "plan ($model, sequence $seq, $ranks ranks)" predicted measured error "order, memory"
row() {
  name=$1; shift
  "$program" plan --model "$model" --cluster host --gpus "$ranks" --costs "$folder/costs.json" --seq-len "$seq" -o "$folder/plan.json" "$@" >/dev/null 2>&1 || [ $? = 1 ]
  "$program" simulate --plan "$folder/plan.json" --model "$model" --cluster host --costs "$folder/costs.json" -o "$folder/prediction.json" >/dev/null 2>&1 || [ $? = 1 ]
  "$program" run --plan "$folder/plan.json" --model "$model" --backend host --steps 9 -o "$folder/measurement.json" >/dev/null 2>&1
  "$program" validate "$folder/prediction.json" "$folder/measurement.json" >"$folder/report.txt" 2>&1 || [ $? = 1 ]
  # "step time   336 ms   602 ms   -44.2 %", and whether order and memory are equal.
  set -- $(grep '^step time' "$folder/report.txt")
  printf '%-58s %7s %2s %7s %2s %6s %%  %s\n' "$name" "$3" "$4" "$5" "$6" "$7" "$(sed -n '1s/.*\(order [a-z ]*\), \(memory [a-z ]*\)\..*/\1, \2/p' "$folder/report.txt")"
}
row "block, reshard" --micro-batch 1 --grad-accum 1 --wrap block --reshard-after-forward true --activation-checkpointing none --replicate 1
row "block, keep gathered" --micro-batch 1 --grad-accum 1 --wrap block --reshard-after-forward false --activation-checkpointing none --replicate 1
row "block:2, accumulation 3" --micro-batch 1 --grad-accum 3 --wrap block:2 --reshard-after-forward true --activation-checkpointing none --replicate 1
row "root, keep gathered" --micro-batch 2 --grad-accum 1 --wrap root --reshard-after-forward false --activation-checkpointing none --replicate 1
row "root, reshard, full checkpointing, accumulation 3" --micro-batch 1 --grad-accum 3 --wrap root --reshard-after-forward true --activation-checkpointing full --replicate 1
row "block, full checkpointing" --micro-batch 2 --grad-accum 1 --wrap block --reshard-after-forward true --activation-checkpointing full --replicate 1
row "titan, every second block checkpointed" --micro-batch 2 --grad-accum 1 --wrap titan --reshard-after-forward auto --activation-checkpointing every-2 --replicate 1
row "block, no gradient sync before the last of 3" --micro-batch 1 --grad-accum 3 --grad-sync last --wrap block --reshard-after-forward true --activation-checkpointing none --replicate 1
