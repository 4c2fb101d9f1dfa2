"""The error of the token estimate beside an exact vocabulary, on texts of kinds that agents send.

Usage: python -m benchmarks.tokens [--json]

Needs the extra `tokens` (quicktok-v1) and reads texts that come with the operating system and with Python: licenses and
manuals (English), the standard library (code), package data (JSON), translated tutorials and help texts (CJK, Cyrillic,
German). A kind for which this machine has no text is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from milepost.engine.tokens import text_tokens

PIECE = 4_000
PIECES = 150
FILES = 60
VOCABULARIES = ("o200k_base", "cl100k_base", "qwen3", "llama3")

_STDLIB = Path(sysconfig.get_path("stdlib"))
_VIM = sorted(Path("/usr/share/vim").glob("vim[0-9]*")) if Path("/usr/share/vim").is_dir() else []


def _sources() -> dict[str, list[Path]]:
    tutor = _VIM[-1] / "tutor" if _VIM else Path("/nowhere")
    gnupg, catalog = Path("/usr/share/gnupg"), Path("/usr/lib/systemd/catalog")
    packages = Path(sysconfig.get_path("purelib"))
    return {
        "English": [*Path("/usr/share/common-licenses").glob("*"), *packages.glob("*.dist-info/METADATA")],
        "code": sorted(_STDLIB.glob("*.py")),
        "JSON": [
            *packages.glob("*/*.json"),
            *packages.glob("*/*/*.json"),
            *Path("tests/histories/recorded").rglob("*.json"),
        ],
        "CJK": [
            *(tutor / f"tutor.{language}.utf-8" for language in ("zh", "ja", "ko")),
            gnupg / "help.zh_CN.txt",
            gnupg / "help.ja.txt",
            *(catalog / f"systemd.{language}.catalog" for language in ("zh_CN", "zh_TW", "ko")),
        ],
        "Cyrillic": [tutor / "tutor.ru.utf-8", gnupg / "help.ru.txt"],
        "German": [tutor / "tutor.de.utf-8", gnupg / "help.de.txt"],
    }


def pieces(files: list[Path], size: int) -> Iterator[str]:
    """Texts of `size` characters, a few of each file."""
    for file in [file for file in files if file.is_file()][:FILES]:
        text = file.read_text(encoding="utf-8", errors="ignore")
        yield from [text[at : at + size] for at in range(0, len(text) - size // 2, size)][:20]


def measure(texts: list[str], encode: Callable[[str], Sequence[int]]) -> dict[str, float]:
    """Estimate by exact count: the mean, the 5th and 95th percentile of pieces, and that of bytes / 4."""
    ratios, plain = [], []
    for text in texts:
        count = max(len(encode(text)), 1)
        ratios.append(text_tokens(text) / count)
        plain.append(len(text.encode()) / 4 / count)
    cuts = statistics.quantiles(ratios, n=20)
    return {
        "pieces": len(texts),
        "mean": round(statistics.fmean(ratios), 3),
        "p5": round(cuts[0], 2),
        "p95": round(cuts[-1], 2),
        "bytes/4": round(statistics.fmean(plain), 2),
    }


def run() -> dict[str, dict[str, dict[str, float]]]:
    """By vocabulary and kind of text."""
    import quicktok

    kinds = {
        kind: list(pieces(files, PIECE if kind != "CJK" else 1_500))[:PIECES] for kind, files in _sources().items()
    }
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name in VOCABULARIES:
        encode = quicktok.get_encoding(name).encode_ordinary
        result[name] = {kind: measure(texts, encode) for kind, texts in kinds.items() if len(texts) >= 20}
    return result


def speed() -> float:
    """Megabytes a second of the estimate."""
    text = "".join(pieces(_sources()["code"], PIECE))[:4_000_000]
    start = time.perf_counter()
    text_tokens(text)
    return round(len(text) / 1e6 / (time.perf_counter() - start), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = run()
    if arguments.json:
        print(json.dumps({"ratios": found, "megabytes_per_second": speed()}, indent=2))
        return 0
    for name, kinds in found.items():
        print(name)
        for kind, values in kinds.items():
            print(f"  {kind:9}", "  ".join(f"{key} {value}" for key, value in values.items()))
    print("megabytes a second", speed())
    return 0


if __name__ == "__main__":
    sys.exit(main())
