#!/bin/sh
# Checks README.md and docs/*.md, without running anything:
#   - every relative link points to a file that exists, and to a heading of it where the link has a #fragment;
#   - every path in `backticks` that starts with a room of the repository exists (`*` matches; words in CAPITALS are
#     placeholders);
#   - README.md has at most 150 lines;
#   - no line of prose is longer than 120 characters. Tables, code blocks and generated text may be.
# usage: links.sh ROOT
set -eu
root=$(realpath "$1")
cd "$root"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Lines outside of code blocks, each as FILE:LINE:TEXT. UTF-8 characters count as one: awk sees bytes, so their
# continuation bytes are dropped.
prose() {
  LC_ALL=C tr -d '\200-\277' <"$1" |
    LC_ALL=C awk -v file="$1" '/^ *```/ {code = !code; next} !code {print file ":" NR ":" $0}'
}

# The fragments that GitHub makes of a file's headings.
headings() {
  prose "$1" | sed -n 's/^[^:]*:[0-9]*:##* //p' | sed -e 's/\[\([^]]*\)\]([^)]*)/\1/g' | tr 'A-Z' 'a-z' |
    sed -e 's/[^a-z0-9_ -]//g' -e 's/ /-/g' | awk '{print $0 (seen[$0]++ ? "-" (seen[$0] - 1) : "")}'
}

links=0
for document in README.md docs/*.md; do
  prose "$document" >"$folder/prose"
  sed -e 's/`[^`]*`//g' "$folder/prose" |
    awk '{rest = $0; sub(/^[^:]*:[0-9]*:/, "", rest); where = substr($0, 1, length($0) - length(rest))
      while (match(rest, /\]\([^)]*\)/)) {
        print where substr(rest, RSTART + 2, RLENGTH - 3)
        rest = substr(rest, RSTART + RLENGTH)
      }}' |
    sed -e 's/ "[^"]*"$//' >"$folder/links"
  while IFS= read -r line; do
    where=${line%:*} target=${line##*:}
    case $line in *:http*://* | *:mailto:*) continue ;; esac
    links=$((links + 1))
    file=${target%%#*}
    if [ -z "$file" ]; then file=$document; else file=$(dirname "$document")/$file; fi
    if [ ! -e "$file" ]; then
      echo "$where: no such file: $target" >>"$folder/wrong"
    elif [ "${target#*#}" != "$target" ] && ! headings "$file" | grep -qxF "${target#*#}"; then
      echo "$where: no such heading: $target" >>"$folder/wrong"
    fi
  done <"$folder/links"
  # Everything in backticks that is one word, also in tables.
  awk '{rest = $0; sub(/^[^:]*:[0-9]*:/, "", rest); where = substr($0, 1, length($0) - length(rest) - 1)
    while (match(rest, /`[^` ]+`/)) {
      print where " " substr(rest, RSTART + 1, RLENGTH - 2)
      rest = substr(rest, RSTART + RLENGTH)
    }}' "$folder/prose" |
    grep -E ' (models|planner|simulator|executor|viz|cli|tests|docs)/' | grep -v -E '[A-Z]{4}|<' \
      >"$folder/paths" || true
  while read -r where path; do
    found=
    for match in $path; do [ ! -e "$match" ] || found=1; done
    [ -n "$found" ] || echo "$where: no such path: $path" >>"$folder/wrong"
  done <"$folder/paths"
  awk '{rest = $0; sub(/^[^:]*:[0-9]*:/, "", rest); where = substr($0, 1, length($0) - length(rest) - 1)}
    rest ~ /^<!-- generated/ {skip = 1} rest ~ /^<!-- end of generated/ {skip = 0}
    !skip && rest !~ /^ *\|/ && length(rest) > 120 {print where ": " length(rest) " characters"}' \
    "$folder/prose" >>"$folder/wrong"
done
length=$(wc -l <README.md)
[ "$length" -le 150 ] || echo "README.md: $length lines, at most 150" >>"$folder/wrong"
[ "$links" -ge 10 ] || echo "only $links links found: the extraction is broken" >>"$folder/wrong"
[ ! -s "$folder/wrong" ] || { cat "$folder/wrong" >&2; exit 1; }
echo "$links links, README.md $length lines"
