"""`python -m milepost.extraction.child LIMITS NAME`: a file on standard input, JSON lines on standard output.

The first line says what the file is, the second what was found in it. The parent trusts nothing but their form.
"""

from __future__ import annotations

import base64
import json
import resource
import sys
import time
from typing import Any

FILE_BYTES = 64 * 1024**2


def main() -> None:
    """Limit this process, then read the file."""
    began = time.monotonic()
    limits: dict[str, Any] = json.loads(sys.argv[1])
    seconds, memory = int(limits["seconds"]), int(limits["memory"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from milepost.extraction.kinds import media_type_of
    from milepost.extraction.readers import Reading, read

    data = sys.stdin.buffer.read()
    kind = media_type_of(data, sys.argv[2])
    _tell({"media_type": kind})
    reading = Reading(seconds, began, int(limits["pages"]), limits["ocr"], str(limits["languages"]))
    try:
        found = read(data, kind, reading)
    except MemoryError:
        mib = memory // 1024**2
        _tell({"state": "failed", "text": "", "note": f"Reading it needs more memory than the limit of {mib} MiB."})
        return
    answer = {"state": found.state.value, "text": found.text, "note": found.note}
    if found.image is not None:
        answer |= {"image": base64.b64encode(found.image).decode("ascii"), "image_type": found.image_type}
    _tell(answer)


def _tell(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
