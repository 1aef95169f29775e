#!/bin/sh
# host_accuracy.sh on made-up rows: medians over rounds, the table, and what --update writes.
set -eu
script=$(cd "$(dirname "$0")" && pwd)/host_accuracy.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/rows.2" <<'ROWS'
1|block, small-llama|0.011|0.010|equal equal|0.1
2|root, small-llama|0.019|0.020|equal equal|0.1
1|block, small-llama|0.021|0.020|equal equal|0.1
1|block, small-llama|0.099|0.030|equal equal|0.1
ROWS
echo '1|block, small-llama|0.010|0.010|equal different|0.5' >"$folder/rows.4"
cat >"$folder/document.md" <<'DOCUMENT'
before
<!-- measured by: tests/accuracy/host_accuracy.sh --update -->
old
<!-- end of measured -->
after
DOCUMENT
FSDP_PLAN_ROWS=$folder FSDP_PLAN_DOCUMENT=$folder/document.md "$script" --update >"$folder/out"
check() { grep -qF -e "$1" "$2" || { echo "not found: $1"; cat "$2"; exit 1; }; }
check '21.00 ms   20.00 ms   +5.0 %  equal on every rank' "$folder/out"
check '19.00 ms   20.00 ms   -5.0 %  equal on every rank' "$folder/out"
check 'mean absolute error 5.0 % (mean +0.0 %) over 2 plans; other processes kept 0.10 cores busy' "$folder/out"
check '10.00 ms   10.00 ms   +0.0 %  DIFFERENT' "$folder/out"
check '| 2 | 5.0 % | 5.0 % | equal on every rank |' "$folder/document.md"
check '| 4 | 0.0 % | 0.0 % | DIFFERENT |' "$folder/document.md"
[ "$(sed -n '1p;2p;$p' "$folder/document.md" | tr '\n' '|')" = \
  'before|<!-- measured by: tests/accuracy/host_accuracy.sh --update -->|after|' ]
if grep -qx old "$folder/document.md"; then echo "the old table is still there"; exit 1; fi
echo no markers >"$folder/document.md"
if FSDP_PLAN_ROWS=$folder FSDP_PLAN_DOCUMENT=$folder/document.md "$script" --update >"$folder/out" 2>&1; then
  echo "a document without markers was written"
  exit 1
fi
check 'has no line' "$folder/out"
echo "the script sums up and writes what it should"
