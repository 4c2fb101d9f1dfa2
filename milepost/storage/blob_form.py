"""The form of a blob's file: compressed where that saves something, else the bytes themselves.

A compressed file begins with a mark and the number of plain bytes (8 bytes, big-endian), then comes a zlib stream
(RFC 1950). Bytes that begin with the mark by themselves are always compressed, so a file says which form it has.
Digests and sizes of references are of the plain bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

MARK: Final = b"\x00milepost blob, zlib 1\n"
LEVEL: Final = 6
_SIZE: Final = 8
_HEAD: Final = len(MARK) + _SIZE
_READ: Final = 64 * 1024
_SHORTEST: Final = 1024
_WORTH: Final = 0.9
"""A sample must become this much shorter; text does, pictures and archives do not."""


class Damaged(ValueError):
    """A compressed file that cannot be expanded, or is not as long as it says."""


def compressible(sample: bytes) -> bool:
    """Whether bytes that begin with `sample` are to be compressed."""
    if sample.startswith(MARK):
        return True
    return len(sample) >= _SHORTEST and len(zlib.compress(sample[:_READ], 1)) < _WORTH * min(len(sample), _READ)


class PlainWriter:
    """Writes plain bytes in the form that `first` decides; `finish` makes the file whole."""

    def __init__(self, file: BinaryIO, first: bytes) -> None:
        self._file = file
        self._size = 0
        self._compressor = zlib.compressobj(LEVEL) if compressible(first) else None
        if self._compressor is not None:
            file.write(MARK + bytes(_SIZE))

    def write(self, data: bytes) -> None:
        """Raises OSError."""
        self._size += len(data)
        self._file.write(data if self._compressor is None else self._compressor.compress(data))

    def finish(self) -> None:
        """Raises OSError."""
        if self._compressor is not None:
            self._file.write(self._compressor.flush())
            self._file.seek(len(MARK))
            self._file.write(self._size.to_bytes(_SIZE, "big"))


class PlainReader:
    """The plain bytes of a blob's file, whatever its form; a context that closes it. `size` is their number."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("rb")
        head = self._file.read(_HEAD)
        self._expander = zlib.decompressobj() if head.startswith(MARK) and len(head) == _HEAD else None
        self._left = b""
        if self._expander is None:
            self._file.seek(0, 2)
            self.size = self._file.tell()
            self._file.seek(0)
        else:
            self.size = int.from_bytes(head[len(MARK) :], "big")

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end. Raises OSError, Damaged."""
        if self._expander is None:
            return self._file.read(size)
        found: list[bytes] = []
        wanted = size
        try:
            while wanted and not self._expander.eof:
                packed = self._left or self._file.read(_READ)
                if not packed:
                    raise Damaged("the compressed bytes end early")
                data = self._expander.decompress(packed, wanted)
                self._left = self._expander.unconsumed_tail
                found.append(data)
                wanted -= len(data)
        except zlib.error as error:
            raise Damaged(str(error)) from error
        return b"".join(found)

    def pieces(self, size: int) -> Iterator[bytes]:
        """All bytes in pieces. Raises OSError, Damaged."""
        while piece := self.read(size):
            yield piece

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> PlainReader:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()
