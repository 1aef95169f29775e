#!/bin/sh
# Runs every command of the ```sh blocks of a README, in order, in a folder that holds nothing but the README; ./dev itself is left out (the tests are run by it).
# The README's ```text block must be what the first of them prints; --update pastes it instead of complaining.
# usage: commands.sh README.md path/to/fsdp-plan [--update]
set -eu
readme=$(realpath "$1")
program=$(realpath "$2")
[ -x "$program" ] || { echo "no program at $program" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^```sh$/ {inside = 1; next} /^```/ {inside = 0} inside' "$readme" |
  sed -e 's/^\$ //' | grep -v -e '^#' -e '^\./dev' -e '^$' >"$folder/commands" || true
count=$(wc -l <"$folder/commands")
[ "$count" -ge 5 ] || { echo "only $count commands found in $readme: the extraction is broken" >&2; exit 1; }
mkdir "$folder/bin" "$folder/here"
ln -s "$program" "$folder/bin/fsdp-plan"
PATH=$folder/bin:$PATH
cp "$readme" "$folder/here/README.md"
cd "$folder/here"
first=1
while IFS= read -r command; do
  echo "\$ $command"
  sh -euc "$command" </dev/null >"$folder/out" 2>"$folder/err" || {
    code=$?
    cat "$folder/out" "$folder/err"
    echo "exit code $code: $command" >&2
    exit 1
  }
  [ $first = 1 ] || continue
  first=0
  if [ "${3:-}" = --update ]; then
    awk -v answer="$folder/out" '/^```text$/ {print; while ((getline line < answer) > 0) print line; skip = 1; next}
      /^```$/ {skip = 0} !skip' "$readme" >"$folder/README" && cat "$folder/README" >"$readme"
  fi
  awk '/^```text$/ {inside = 1; next} /^```/ {inside = 0} inside' "$readme" | diff - "$folder/out" || {
    echo "the README shows another answer than the program gives; run: tests/docs/commands.sh README.md build/release/fsdp-plan --update" >&2
    exit 1
  }
done <"$folder/commands"
echo "$count commands ran"
