"""The `attachments` section: how large files may be, and how they are read."""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, Field, StringConstraints

from milepost.config.sections import Count, Section
from milepost.domain.attachments import (
    EXTRACTION_MEMORY,
    EXTRACTION_SECONDS,
    MAX_DOCUMENT_BYTES,
    MAX_IMAGE_BYTES,
    MAX_PAGES,
    MIB,
)


class AttachmentsSection(Section):
    image_bytes: Annotated[ByteSize, Field(ge=1024, le=100 * MIB)] = ByteSize(MAX_IMAGE_BYTES)
    """Largest image. Bytes, or with a unit: 10MiB."""
    document_bytes: Annotated[ByteSize, Field(ge=1024, le=256 * MIB)] = ByteSize(MAX_DOCUMENT_BYTES)
    """Largest file that is no image."""
    seconds: Annotated[Count, Field(ge=1, le=600)] = EXTRACTION_SECONDS
    """How long taking the text out of one file may take."""
    memory: Annotated[ByteSize, Field(ge=256 * MIB, le=64 * 1024 * MIB)] = ByteSize(EXTRACTION_MEMORY)
    """Memory of the process that does it (Linux)."""
    pages: Annotated[Count, Field(ge=1, le=100_000)] = MAX_PAGES
    """Pages of a PDF document that are read."""
    ocr: bool = True
    """Read text from images where tesseract is installed."""
    ocr_languages: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]{1,32}(\+[A-Za-z_]{1,32}){0,7}$")] = "eng"
    """Languages of that text as tesseract names them: eng, deu+fra. Each needs its package."""
