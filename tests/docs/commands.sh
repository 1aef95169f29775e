#!/bin/sh
# Runs every command of the ```sh blocks of a document, in order, in a folder that holds only that document and
# README.md. A line that ends in \ continues on the next one. A command may exit with code 1 if it ends in a comment
# that starts with "exit code 1".
# `./dev` commands are left out: they run the tests themselves.
# If the document has a ```text block, it must be what the first command prints; --update replaces it instead.
# usage: commands.sh DOCUMENT.md path/to/fsdp-plan [--update]
set -eu
document=$(realpath "$1")
program=$(realpath "$2")
root=$(cd "$(dirname "$0")/../.." && pwd)
[ -x "$program" ] || { echo "no program at $program" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^```sh$/ {inside = 1; next} /^```/ {inside = 0}
  inside {
    if (continued) sub(/^ +/, "")
    continued = sub(/\\$/, "")
    printf "%s%s", $0, continued ? "" : "\n"
  }' "$document" |
  sed -e 's/^\$ //' | grep -v -e '^#' -e '^\./dev' -e '^$' >"$folder/commands" || true
count=$(wc -l <"$folder/commands")
[ "$count" -ge 1 ] || { echo "no commands found in $document: the extraction is broken" >&2; exit 1; }
mkdir "$folder/bin" "$folder/here"
ln -s "$program" "$folder/bin/fsdp-plan"
PATH=$folder/bin:$PATH
cp "$root/README.md" "$folder/here/"
cp "$document" "$folder/here/"
cd "$folder/here"
first=1
while IFS= read -r command; do
  echo "\$ $command"
  sh -euc "$command" </dev/null >"$folder/out" 2>"$folder/err" || {
    code=$?
    case $code:$command in 1:*"# exit code 1"*) continue ;; esac
    cat "$folder/out" "$folder/err"
    echo "exit code $code: $command" >&2
    exit 1
  }
  [ $first = 1 ] || continue
  first=0
  grep -q '^```text$' "$document" || continue
  if [ "${3:-}" = --update ]; then
    awk -v answer="$folder/out" '/^```text$/ {print; while ((getline line < answer) > 0) print line; skip = 1; next}
      /^```$/ {skip = 0} !skip' "$document" >"$folder/updated" && cat "$folder/updated" >"$document"
  fi
  awk '/^```text$/ {inside = 1; next} /^```/ {inside = 0} inside' "$document" | diff - "$folder/out" || {
    echo "the document shows another answer than the program gives; run: $0 $document $program --update" >&2
    exit 1
  }
done <"$folder/commands"
echo "$count commands ran"
