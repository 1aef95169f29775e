#!/bin/sh
# An object of the kernels for a wider instruction set offers the rest of the program its table and nothing else. Any
# other global symbol (an inline function of the standard library, compiled for AVX-512) could be linked everywhere.
#
#   symbols.sh NM OBJECT...            each OBJECT is named after its table
set -eu
nm=$1; shift
[ $# -gt 0 ] || { echo "this build has one compilation of the kernels"; exit 0; }
for object in "$@"; do
  table=$(basename "$object" .o)
  offered=$("$nm" --defined-only --extern-only "$object" | awk 'NF == 3 {print $3}' | sort -u)
  [ "$offered" = "$table" ] || { printf '%s: offers more than %s:\n%s\n' "$object" "$table" "$offered"; exit 1; }
  symbols=$("$nm" --defined-only "$object" | wc -l)
  [ "$symbols" -gt 100 ] || { echo "$object: hardly a symbol in it: the wrong file?"; exit 1; }
  echo "$object: $table alone"
done
