#!/bin/sh
# Runs every command of the ```sh blocks of a README, in order, in an empty folder; ./dev itself is left out (the tests are run by it).
# usage: readme_commands.sh README.md path/to/fsdp-plan
set -eu
readme=$1
program=$2
[ -x "$program" ] || { echo "no program at $program" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^```sh$/ {inside = 1; next} /^```/ {inside = 0} inside' "$readme" |
  sed -e 's/^\$ //' | grep -v -e '^#' -e '^\./dev' -e '^$' >"$folder/commands" || true
count=$(wc -l <"$folder/commands")
[ "$count" -ge 5 ] || { echo "only $count commands found in $readme: the extraction is broken" >&2; exit 1; }
mkdir "$folder/bin" "$folder/work"
ln -s "$program" "$folder/bin/fsdp-plan"
PATH=$folder/bin:$PATH
cd "$folder/work"
while IFS= read -r command; do
  echo "\$ $command"
  sh -euc "$command" </dev/null >"$folder/out" 2>"$folder/err" || {
    code=$?
    cat "$folder/out" "$folder/err"
    echo "exit code $code: $command" >&2
    exit 1
  }
done <"$folder/commands"
echo "$count commands ran"
