#!/usr/bin/env bash
# Run the CPU kernels of attention under AddressSanitizer, over shapes at the edges of their tiles.
# usage: scripts/sanitize_attention.sh [python]
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${1:-python}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

"$python" "$here/sanitize_attention.py" compile "$folder"
# The sanitizer has to be loaded before Python. Python does not free all memory at exit, so leaks are not checked.
LD_PRELOAD="$("${CXX:-g++}" -print-file-name=libasan.so) $("${CXX:-g++}" -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
    "$python" "$here/sanitize_attention.py" run "$folder"
echo "no address errors"
