"""Model servers for tests: a fake one that misbehaves on request, and a real small model."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.needs import unavailable
from tests.support.openai_server import OpenAIServer

ROOT = Path(__file__).resolve().parents[2]
LOCAL_MODEL = "smollm2-135m-instruct"
START_SECONDS = 90.0


@pytest.fixture
def model_server() -> Iterator[OpenAIServer]:
    """A fresh fake OpenAI-compatible server; see `Reply` for what it can do."""
    server = OpenAIServer().start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def local_model() -> Iterator[str]:
    """Base address of a real small model served by llama.cpp; `LOCAL_MODEL` is its name.

    `infra/local-model.sh` installs it into a folder of its own.
    """
    where = subprocess.run([ROOT / "infra/local-model.sh", "--where"], capture_output=True, text=True, check=True)
    python = Path(where.stdout.strip()) / "bin/python"
    if not python.exists():
        unavailable("the small local model", "run infra/local-model.sh")
    server = subprocess.Popen(
        [python, ROOT / "infra/local_model_server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), f"the local model did not start: {address!r}"
        _wait_until_loaded(address)
        yield f"{address}/v1"
    finally:
        assert server.stdin is not None
        # The end of its input ends the server, also when this process is killed.
        server.stdin.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _wait_until_loaded(address: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        assert time.monotonic() < deadline, "the local model did not load"
        time.sleep(0.1)


FAKES = {
    "openai_compatible": "openai_server:OpenAIServer",
    "openai": "responses_server:ResponsesServer",
    "openrouter": "openrouter_server:OpenRouterServer",
    "anthropic": "anthropic_server:AnthropicServer",
    "ollama": "ollama_server:OllamaServer",
    "gemini": "gemini_server:GeminiServer",
    "mistral": "mistral_server:MistralServer",
}
"""Modules and classes of the fakes by provider type."""


def main() -> None:
    """Serve the fake of a provider type until the end of standard input; print its base address first."""
    module, _, name = FAKES[sys.argv[1] if len(sys.argv) > 1 else "openai_compatible"].partition(":")
    server = getattr(importlib.import_module(f"tests.support.{module}"), name)().start()
    print(server.base_url, flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
