"""What a turn may change of its agent."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import Body, at_most
from milepost.domain.agents import MAX_ROUNDS
from milepost.domain.errors import InvalidInput
from milepost.domain.messages import ResponseFormat, Sampling
from milepost.security.schemas import check_parameters

Word = Annotated[str, *at_most(200)]


class ResponseFormatBody(Body):
    """An answer as JSON."""

    json_schema: dict[str, Any] | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    strict: bool = True

    def chosen(self) -> ResponseFormat:
        """Raises InvalidInput for a schema that cannot be used."""
        if self.json_schema is not None:
            try:
                check_parameters(self.json_schema)
            except ValueError as error:
                message = str(error).replace("the parameters", "the schema")
                raise InvalidInput(f"{message}.", field="sampling.response_format.json_schema") from None
        return ResponseFormat(self.json_schema, self.name, self.strict)


class SamplingBody(Body):
    """Sampling of this turn; what is not named is the agent's."""

    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    max_tokens: Annotated[int | None, Field(gt=0, lt=2**31)] = None
    reasoning_effort: Word | None = None
    stop: Annotated[list[Word], Field(max_length=16)] = Field(default_factory=list)
    response_format: ResponseFormatBody | None = None

    def chosen(self) -> Sampling:
        """Raises InvalidInput."""
        shape = None if self.response_format is None else self.response_format.chosen()
        return Sampling(self.temperature, self.top_p, self.max_tokens, self.reasoning_effort, tuple(self.stop), shape)


MaxRounds = Annotated[int | None, Field(ge=1, le=MAX_ROUNDS)]
Tools = Annotated[list[Word] | None, Field(max_length=256)]
