#!/usr/bin/env bash
# Runs the CPU kernels of attention under AddressSanitizer, over shapes at the edges of their tiles.
# usage: scripts/sanitize_attention.sh [python]
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${1:-python}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

"$python" "$here/sanitize_attention.py" compile "$folder"
# The sanitizer has to be there before Python is. Python does not free all it has at its end, so leaks say nothing.
LD_PRELOAD="$("${CXX:-g++}" -print-file-name=libasan.so) $("${CXX:-g++}" -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
    "$python" "$here/sanitize_attention.py" run "$folder"
echo "no address errors"
