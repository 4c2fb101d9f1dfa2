"""Imports."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Query, Shape
from api.schemas.sessions import PathText
from milepost.domain.errors import InvalidInput
from milepost.services.importing.service import Imported, ImportOptions


class ImportQuery(Query):
    """What the Session shall be here."""

    workspace: PathText | None = None
    """Absolute path of the folder it works on; without it the one it had, if this instance knows that folder."""
    title: Annotated[str | None, Field(max_length=200)] = None

    def command(self) -> ImportOptions:
        """Raises InvalidInput for a path that is not absolute."""
        if self.workspace is not None and not self.workspace.startswith("/"):
            raise InvalidInput("The workspace must be an absolute path.", field="workspace")
        return ImportOptions(self.workspace, self.title)


class ImportedShape(Shape):
    """The Session. `created` is false if the file had been imported before. `interrupted` counts turns without an end.

    `missing_blobs`: long texts that the export's instance did not have any more; of those there is the preview.
    """

    session_id: str
    created: bool
    format: str
    turns: int
    interrupted: int
    missing_blobs: int

    @classmethod
    def of(cls, done: Imported) -> ImportedShape:
        return cls(
            session_id=done.session_id,
            created=done.created,
            format=done.format,
            turns=done.turns,
            interrupted=done.interrupted,
            missing_blobs=done.missing_blobs,
        )
