#!/bin/sh
# Step-time error of predictions on this machine: twelve plans of two models that calibration never saw, on 2 ranks and
# on 4. Each round calibrates (micro-benchmarks only), then predicts and runs each plan. A row holds the medians over
# the rounds. Order and memory are compared on every rank in every round. The script wants an otherwise idle machine,
# and says how busy the machine was.
#
#   tests/accuracy/host_accuracy.sh [--update] [PROGRAM] [ROUNDS] [RANKS ...]
#
#   --update           writes the means into docs/accuracy.md too, between its `measured by` and `end of measured` lines
#   FSDP_PLAN_BUDGET   of each calibration, default 20s
#   FSDP_PLAN_STEPS    of each run at most, default 24
#   FSDP_PLAN_ROWS     a folder with rows.2, rows.4: summed up instead of measuring (the test of this script)
#   FSDP_PLAN_DOCUMENT what --update writes into, default docs/accuracy.md
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
document=${FSDP_PLAN_DOCUMENT:-$root/docs/accuracy.md}
update=
[ "${1:-}" != --update ] || { update=1; shift; }
program=${1:-build/release/fsdp-plan} rounds=${2:-3}
[ $# -lt 2 ] || shift
[ $# -lt 1 ] || shift
[ $# -gt 0 ] || set -- 2 4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Exit code 1 means that the answer is no (too slow, does not fit): no failure here.
allow_no() { "$@" >/dev/null 2>&1 || [ $? = 1 ]; }
field() { sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" "$1" | head -1; }

# row NUMBER NAME MODEL SEQ_LEN FLAGS ...: one plan in this round
row() {
  id=$1 name=$2 model=$3 seq=$4; shift 4
  plan=$folder/$ranks.$id.plan.json prediction=$folder/prediction.json measurement=$folder/measurement.json
  [ -f "$plan" ] ||
    allow_no "$program" plan --model "$model" --cluster host --gpus "$ranks" --costs "$folder/costs.json" \
      --seq-len "$seq" -o "$plan" "$@"
  allow_no "$program" simulate --plan "$plan" --model "$model" --cluster host --costs "$folder/costs.json" \
    -o "$prediction"
  "$program" run --plan "$plan" --model "$model" --backend host --warmup 3 --until-noise 2% \
    --max-steps "${FSDP_PLAN_STEPS:-24}" -o "$measurement" >/dev/null 2>&1
  "$program" validate "$prediction" "$measurement" >"$folder/report.txt" 2>&1 || [ $? = 1 ]
  same=$(sed -n '1s/.*order \([a-zA-Z]*\), memory \([a-zA-Z]*\)\..*/\1 \2/p' "$folder/report.txt")
  printf '%s|%s, %s|%s|%s|%s|%s\n' "$id" "$name" "$model" "$(field "$prediction" step_time_s)" \
    "$(field "$measurement" median_step_s)" "$same" "$(field "$measurement" other_cores)" >>"$folder/rows.$ranks"
}

# Everything on RANKS ranks, once.
measure() {
  half=$((ranks / 2))
  [ "$half" -gt 1 ] || half=1
  "$program" calibrate --backend host --ranks "$ranks" --budget "${FSDP_PLAN_BUDGET:-20s}" \
    -o "$folder/costs.json" >/dev/null 2>&1
  none="--activation-checkpointing none" full="--activation-checkpointing full"
  one="--micro-batch 1 --grad-accum 1 --replicate 1" two="--micro-batch 2 --grad-accum 1 --replicate 1"
  three="--micro-batch 1 --grad-accum 3 --replicate 1"
  free="--reshard-after-forward true" keep="--reshard-after-forward false"
  # shellcheck disable=SC2086
  {
    row 1 "block, reshard" small-llama 128 $one $none --wrap block $free
    row 2 "block, keep gathered" small-llama 128 $one $none --wrap block $keep
    row 3 "block:2, accumulation 3" small-llama 128 $three $none --wrap block:2 $free
    row 4 "root, keep gathered" small-llama 128 $two $none --wrap root $keep
    row 5 "root, full checkpointing, accumulation 3" small-llama 128 $three $full --wrap root $free
    row 6 "block, full checkpointing" small-llama 128 $two $full --wrap block $free
    row 7 "titan, every second block checkpointed" small-llama 128 $two --activation-checkpointing every-2 \
      --wrap titan --reshard-after-forward auto
    row 8 "no gradient sync before the last of 3" small-llama 128 $three --grad-sync last $none --wrap block $free
    row 9 "block, prefetch 2 and 2" small-llama 256 $one $none --wrap block $free \
      --forward-prefetch 2 --backward-prefetch 2
    row 10 "HSDP 2 x $half, accumulation 2" small-llama 128 --micro-batch 1 --grad-accum 2 --replicate 2 $none \
      --wrap block $free
    row 11 "ddp" small-llama 128 --dialect ddp --micro-batch 2 --grad-accum 1 $none
    row 12 "block, reshard" tiny-llama 64 --micro-batch 4 --grad-accum 1 --replicate 1 $none --wrap block $free
  }
}

# The table of a file of rows; appends one line of Markdown to SUMMARY.
# summed_up ROWS SUMMARY
summed_up() {
  awk -F'|' -v ranks="$ranks" -v summary="$2" '
    function middle(list, n,   a, i, j, t) {
      split(list, a, " ")
      for (i = 1; i <= n; ++i)
        for (j = i + 1; j <= n; ++j)
          if (a[j] + 0 < a[i] + 0) { t = a[i]; a[i] = a[j]; a[j] = t }
      return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    {
      name[$1] = $2; predicted[$1] = predicted[$1] " " $3; measured[$1] = measured[$1] " " $4
      ++n[$1]; most = $1 > most ? $1 + 0 : most
      if ($5 != "equal equal") { different[$1] = 1; any_different = 1 }
      busy += $6; ++all
    }
    END {
      printf "%-58s %10s %10s %8s  %s\n", "plan", "predicted", "measured", "error", "order, memory"
      for (i = 1; i <= most; ++i) if (n[i]) {
        p = middle(predicted[i], n[i]); m = middle(measured[i], n[i]); e = 100 * (p / m - 1)
        printf "%-58s %7.2f ms %7.2f ms %+6.1f %%  %s\n", name[i], 1e3 * p, 1e3 * m, e,
          different[i] ? "DIFFERENT" : "equal on every rank"
        size = e < 0 ? -e : e
        sum += size; signed += e; ++rows
        if (size > worst) worst = size
      }
      printf "mean absolute error %.1f %% (mean %+.1f %%) over %d plans; ", sum / rows, signed / rows, rows
      printf "other processes kept %.2f cores busy meanwhile\n", busy / all
      printf "| %d | %.1f %% | %.1f %% | %s |\n", ranks, sum / rows, worst,
        any_different ? "DIFFERENT" : "equal on every rank" >>summary
    }' "$1"
}

: >"$folder/summary"
for ranks in "$@"; do
  rows=$folder/rows.$ranks
  if [ -n "${FSDP_PLAN_ROWS:-}" ]; then
    rows=$FSDP_PLAN_ROWS/rows.$ranks
  else
    for round in $(seq "$rounds"); do measure; done
  fi
  printf '\n%s ranks, %s rounds; load %s\n' "$ranks" "$rounds" "$(cut -d' ' -f1-3 /proc/loadavg)"
  summed_up "$rows" "$folder/summary"
done

[ -n "$update" ] || exit 0
grep -q '^<!-- measured by: tests/accuracy/host_accuracy.sh' "$document" ||
  { echo "$document has no line '<!-- measured by: tests/accuracy/host_accuracy.sh ... -->'" >&2; exit 1; }
machine=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)
awk -v summary="$folder/summary" -v said="$machine, $(nproc) cores, $(date -u +%Y-%m-%d), $rounds rounds:" '
  /^<!-- measured by: tests\/accuracy\/host_accuracy.sh/ {
    print; print said "\n"
    print "| ranks | mean error of the step time | worst | order and memory |"
    print "|---|---|---|---|"
    while ((getline line < summary) > 0) print line
    skip = 1
  }
  /^<!-- end of measured -->$/ {skip = 0}
  !skip' "$document" >"$folder/document"
cat "$folder/document" >"$document"
echo "$document: written"
