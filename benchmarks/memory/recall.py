"""What semantic memory finds: recall@1, @5 and @10 on LoCoMo.

Usage: python -m benchmarks.memory.recall LOCOMO_JSON [--split N] [--json]

Recall@k of a question is the share of its evidence turns among the first k; the figure is the mean over questions.
Weights were chosen on the first `--split` conversations (3), the rest is reported apart. `words`, `BM25` and `meaning`
rank by one of the parts, with the product's tokens and embedder over the same indexed text; `earlier` is
0.6 * bm25 / (bm25 + 10) + 0.4 * cosine. `memory` is the product itself: `IndexedMemory` over files, with the packaged
embedder and without a model. No model is called. Tokens are bytes / 4, rounded up, of the texts that are given back.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.memory.locomo import CATEGORIES, Conversation, Question, load
from milepost.domain.memory import Scope
from milepost.embedders.lexical import LexicalHash
from milepost.embedders.minilm.embedder import PackagedMiniLM
from milepost.engine.lexical import Statistics, best_score, bm25, text_score, tokens
from milepost.engine.recall import indexed_text
from milepost.memory.semantic import IndexedMemory
from milepost.ports.embeddings import Embedder
from milepost.storage.semantic_files import FileSemanticStore

CUTS = (1, 5, 10)
BATCH = 500

Ranked = list[tuple[Question, list[str]]]


async def ranked_by_parts(conversation: Conversation, embedder: Embedder) -> dict[str, Ranked]:
    """The first ten turns for each question, by each part of the score alone."""
    texts = [
        indexed_text(entry.text, at=entry.at, speaker=entry.speaker, captions=entry.captions)
        for entry in conversation.entries
    ]
    counted = [tokens(text) for text in texts]
    counts = [Counter(found) for found in counted]
    vectors = np.stack([np.frombuffer(vector, "<f4") for vector in await _embedded(embedder, texts)])
    result: dict[str, Ranked] = {"words": [], "BM25": [], "meaning": [], "earlier": []}
    for question in conversation.questions:
        terms = tokens(question.text)
        [vector] = await embedder.embed([question.text])
        statistics = Statistics.of(terms, counted)
        weights = [bm25(terms, count, len(found), statistics) for count, found in zip(counts, counted, strict=True)]
        cosines = (vectors @ np.frombuffer(vector, "<f4")).tolist()
        scores: dict[str, Sequence[float]] = {
            "words": [text_score(terms, count) for count in counts],
            "BM25": weights,
            "meaning": cosines,
            "earlier": [best_score(weight, near) for weight, near in zip(weights, cosines, strict=True)],
        }
        for name, values in scores.items():
            order = sorted(range(len(values)), key=lambda place, v=values: (-v[place], place))[: max(CUTS)]  # type: ignore[misc]
            result[name].append((question, [conversation.entries[place].id for place in order]))
    return result


async def _embedded(embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    return [vector for start in range(0, len(texts), 64) for vector in await embedder.embed(texts[start : start + 64])]


async def ranked_by_memory(
    conversation: Conversation, embedder: Embedder, folder: Path
) -> tuple[Ranked, dict[int, list[int]]]:
    """What the product finds, and the tokens of the first k of it."""
    memory = IndexedMemory(FileSemanticStore(lambda scope: folder / scope.component), embedder)
    scope = Scope.agent(conversation.name, "agent")
    held: dict[str, str] = {}
    for start in range(0, len(conversation.entries), BATCH):
        for added in await memory.add(scope, conversation.entries[start : start + BATCH]):
            held[added.entry_id] = added.record_id
    found: Ranked = []
    sizes: dict[int, list[int]] = {cut: [] for cut in CUTS}
    for question in conversation.questions:
        recall = await memory.search(scope, question.text, limit=max(CUTS), min_score=0)
        evidence = frozenset(held[turn] for turn in question.evidence)
        found.append((Question(question.text, question.category, evidence), [item.id for item in recall.items]))
        for cut in CUTS:
            sizes[cut].append(sum(-(-len(item.text.encode()) // 4) for item in recall.items[:cut]))
    await memory.close()
    return found, sizes


def recall_at(ranked: Ranked, cut: int, keep: Callable[[Question], bool] = lambda question: True) -> float:
    """Mean recall@k in percent."""
    values = [len(q.evidence & set(ids[:cut])) / len(q.evidence) for q, ids in ranked if keep(q)]
    return 100 * sum(values) / len(values) if values else 0.0


async def main(conversations: Sequence[Conversation], digest: str, split: int, as_json: bool) -> None:
    neural = PackagedMiniLM(threads=1, seconds=120, load_seconds=120)
    systems: dict[str, list[Ranked]] = {}
    sizes: dict[int, list[int]] = {cut: [] for cut in CUTS}
    with tempfile.TemporaryDirectory() as name:
        for conversation in conversations:
            for system, ranked in (await ranked_by_parts(conversation, neural)).items():
                systems.setdefault(system, []).append(ranked)
            for system, embedder in (("memory, no model", LexicalHash()), ("memory", neural)):
                ranked, found = await ranked_by_memory(conversation, embedder, Path(name) / system)
                systems.setdefault(system, []).append(ranked)
            for cut in CUTS:
                sizes[cut] += found[cut]
    await neural.close()
    report(systems, sizes, split, digest, as_json)


def report(
    systems: dict[str, list[Ranked]], sizes: dict[int, list[int]], split: int, digest: str, as_json: bool
) -> None:
    figures = {
        system: {
            part: [round(recall_at([q for r in ranked[chosen] for q in r], cut), 1) for cut in CUTS]
            for part, chosen in (("chosen on", slice(split)), ("others", slice(split, None)), ("all", slice(None)))
        }
        for system, ranked in systems.items()
    }
    best = [item for ranked in systems["memory"] for item in ranked]
    kinds = {
        name: [round(recall_at(best, cut, lambda q, n=number: q.category == n), 1) for cut in CUTS]  # type: ignore[misc]
        for number, name in CATEGORIES.items()
    }
    tokens_given = {cut: round(sum(found) / len(found)) for cut, found in sizes.items()}
    if as_json:
        print(json.dumps({"data": digest, "recall": figures, "kinds": kinds, "tokens": tokens_given}))
        return
    print(f"data {digest[:16]}, {len(best)} questions; recall@{'/'.join(map(str, CUTS))} in percent")
    for system, parts in figures.items():
        print(f"{system:18}" + "".join(f" {name}: {' '.join(f'{v:5.1f}' for v in vs)} " for name, vs in parts.items()))
    for name, values in kinds.items():
        print(f"  {name:16} {' '.join(f'{value:5.1f}' for value in values)}")
    print(f"tokens given back by the first {', '.join(f'{cut}: {count}' for cut, count in tokens_given.items())}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.data.is_file():
        raise SystemExit(f"There is no {given.data}: get the data of LoCoMo and give the path of its JSON.")
    digest = hashlib.sha256(given.data.read_bytes()).hexdigest()
    asyncio.run(main(load(given.data), digest, given.split, given.json))
