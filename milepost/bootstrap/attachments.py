"""Attachments as the configuration wants them."""

from __future__ import annotations

from milepost.config.loading import Config
from milepost.extraction import Limits, ProcessExtractor
from milepost.ports.ledger import Ledger
from milepost.ports.system import Clock, IdSource
from milepost.services.attachments import AttachmentLimits, AttachmentService
from milepost.services.contents import Contents


def attachment_limits(config: Config) -> AttachmentLimits:
    """How large files may be."""
    section = config.settings.attachments
    return AttachmentLimits(int(section.image_bytes), int(section.document_bytes), section.seconds)


def open_attachments(
    config: Config, ledger: Ledger, contents: Contents, clock: Clock, ids: IdSource
) -> AttachmentService:
    """The service of this process. The libraries that read files are imported in processes of their own only."""
    section = config.settings.attachments
    extractor = ProcessExtractor(
        Limits(section.seconds, int(section.memory), section.pages, section.ocr, section.ocr_languages)
    )
    return AttachmentService(ledger, contents, clock, ids, extractor, attachment_limits(config))
