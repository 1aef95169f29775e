#!/bin/sh
# Step-time error of predictions on this machine: twelve plans of two models that calibration never saw, on 2 ranks and on 4. In every round
# it calibrates (micro-benchmarks only), then predicts and runs each plan; a row holds the medians over the rounds. Wants an otherwise idle
# machine, and says how busy it was. Order and memory are compared on every rank in every round.
#
#   tests/accuracy/host_accuracy.sh [PROGRAM] [ROUNDS] [RANKS ...]         FSDP_PLAN_BUDGET: of each calibration, default 20s; FSDP_PLAN_STEPS: at most, of each run
set -eu
program=${1:-build/release/fsdp-plan} rounds=${2:-3}
[ $# -lt 2 ] || shift
[ $# -lt 1 ] || shift
[ $# -gt 0 ] || set -- 2 4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

allow_no() { "$@" >/dev/null 2>&1 || [ $? = 1 ]; }  # 1: the answer is no (too slow, does not fit), which is no failure here
field() { sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" "$1" | head -1; }

# row NUMBER NAME MODEL SEQ_LEN FLAGS ...: one plan in this round
row() {
  id=$1 name=$2 model=$3 seq=$4; shift 4
  plan=$folder/$ranks.$id.plan.json prediction=$folder/prediction.json measurement=$folder/measurement.json
  [ -f "$plan" ] || allow_no "$program" plan --model "$model" --cluster host --gpus "$ranks" --costs "$folder/costs.json" --seq-len "$seq" -o "$plan" "$@"
  allow_no "$program" simulate --plan "$plan" --model "$model" --cluster host --costs "$folder/costs.json" -o "$prediction"
  "$program" run --plan "$plan" --model "$model" --backend host --warmup 3 --until-noise 2% --max-steps "${FSDP_PLAN_STEPS:-24}" -o "$measurement" >/dev/null 2>&1
  "$program" validate "$prediction" "$measurement" >"$folder/report.txt" 2>&1 || [ $? = 1 ]
  same=$(sed -n '1s/.*order \([a-zA-Z]*\), memory \([a-zA-Z]*\)\..*/\1 \2/p' "$folder/report.txt")
  printf '%s|%s, %s|%s|%s|%s|%s\n' "$id" "$name" "$model" "$(field "$prediction" step_time_s)" "$(field "$measurement" median_step_s)" \
    "$same" "$(field "$measurement" other_cores)" >>"$folder/rows.$ranks"
}

for ranks in "$@"; do
  half=$((ranks / 2))
  for round in $(seq "$rounds"); do
    "$program" calibrate --backend host --ranks "$ranks" --budget "${FSDP_PLAN_BUDGET:-20s}" -o "$folder/costs.json" >/dev/null 2>&1
    small="--micro-batch 1 --grad-accum 1 --activation-checkpointing none --replicate 1"
    # shellcheck disable=SC2086
    {
      row 1 "block, reshard" small-llama 128 $small --wrap block --reshard-after-forward true
      row 2 "block, keep gathered" small-llama 128 $small --wrap block --reshard-after-forward false
      row 3 "block:2, accumulation 3" small-llama 128 --micro-batch 1 --grad-accum 3 --activation-checkpointing none --replicate 1 --wrap block:2 --reshard-after-forward true
      row 4 "root, keep gathered" small-llama 128 --micro-batch 2 --grad-accum 1 --activation-checkpointing none --replicate 1 --wrap root --reshard-after-forward false
      row 5 "root, full checkpointing, accumulation 3" small-llama 128 --micro-batch 1 --grad-accum 3 --activation-checkpointing full --replicate 1 --wrap root --reshard-after-forward true
      row 6 "block, full checkpointing" small-llama 128 --micro-batch 2 --grad-accum 1 --activation-checkpointing full --replicate 1 --wrap block --reshard-after-forward true
      row 7 "titan, every second block checkpointed" small-llama 128 --micro-batch 2 --grad-accum 1 --activation-checkpointing every-2 --replicate 1 --wrap titan --reshard-after-forward auto
      row 8 "no gradient sync before the last of 3" small-llama 128 --micro-batch 1 --grad-accum 3 --grad-sync last --activation-checkpointing none --replicate 1 --wrap block --reshard-after-forward true
      row 9 "block, prefetch 2 and 2" small-llama 256 $small --wrap block --reshard-after-forward true --forward-prefetch 2 --backward-prefetch 2
      row 10 "HSDP $([ "$half" -gt 1 ] && echo "2 x $half" || echo "2 x 1"), accumulation 2" small-llama 128 --micro-batch 1 --grad-accum 2 --activation-checkpointing none --replicate 2 --wrap block --reshard-after-forward true
      row 11 "ddp" small-llama 128 --dialect ddp --micro-batch 2 --grad-accum 1 --activation-checkpointing none
      row 12 "block, reshard" tiny-llama 64 --micro-batch 4 --grad-accum 1 --activation-checkpointing none --replicate 1 --wrap block --reshard-after-forward true
    }
  done
  printf '\n%s ranks, %s rounds; load %s\n' "$ranks" "$rounds" "$(cut -d' ' -f1-3 /proc/loadavg)"
  awk -F'|' -v rounds="$rounds" '
    function middle(list, n,   a, i, j, t) {
      split(list, a, " ")
      for (i = 1; i <= n; ++i) for (j = i + 1; j <= n; ++j) if (a[j] + 0 < a[i] + 0) { t = a[i]; a[i] = a[j]; a[j] = t }
      return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    { name[$1] = $2; predicted[$1] = predicted[$1] " " $3; measured[$1] = measured[$1] " " $4; ++n[$1]; most = $1 > most ? $1 + 0 : most
      if ($5 != "equal equal") different[$1] = 1; busy += $6; ++all }
    END {
      printf "%-58s %10s %10s %8s  %s\n", "plan", "predicted", "measured", "error", "order, memory"
      for (i = 1; i <= most; ++i) if (n[i]) {
        p = middle(predicted[i], n[i]); m = middle(measured[i], n[i]); e = 100 * (p / m - 1)
        printf "%-58s %7.2f ms %7.2f ms %+6.1f %%  %s\n", name[i], 1e3 * p, 1e3 * m, e, different[i] ? "DIFFERENT" : "equal on every rank"
        sum += e < 0 ? -e : e; signed += e; ++rows
      }
      printf "mean absolute error %.1f %% (mean %+.1f %%) over %d plans; other processes kept %.2f cores busy meanwhile\n", sum / rows, signed / rows, rows, busy / all
    }' "$folder/rows.$ranks"
done
