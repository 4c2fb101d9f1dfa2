"""Requests to E2B's service through its SDK: every one has a deadline, and its failures have our names.

The SDK is imported where it is first used: it takes longer than the rest of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from milepost.domain.errors import MilepostError, SandboxUnavailable
from milepost.sandboxes.e2b.settings import E2BSettings

if TYPE_CHECKING:
    from e2b import AsyncSandbox

MAX_LISTED = 1000
READY_TRIES = 20
READY_PAUSE = 0.5

_QUIET = logging.getLogger("milepost.e2b.sdk")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
"""The SDK logs each failure, which ours are made of, with headers and addresses."""


class Missing(Exception):
    """The service has no sandbox of this id (any more)."""


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox as the service lists it."""

    sandbox_id: str
    metadata: dict[str, str]
    running: bool


class Service:
    """One account of the service."""

    def __init__(self, settings: E2BSettings) -> None:
        self.settings = settings

    def _options(self) -> dict[str, Any]:
        chosen = self.settings
        return {
            "api_key": chosen.key(),
            "domain": chosen.domain,
            "api_url": chosen.api_url or f"https://api.{chosen.domain}",
            "sandbox_url": chosen.sandbox_url,
            "request_timeout": chosen.request_seconds,
            "debug": False,
        }

    async def create(self, metadata: dict[str, str], key: str, *, internet: bool) -> AsyncSandbox:
        """A new sandbox, or the one that the same key made before. Raises SandboxUnavailable."""
        from e2b import AsyncSandbox

        async with self.translated():
            made = await AsyncSandbox.create(
                template=self.settings.template,
                timeout=self.settings.timeout_seconds,
                metadata=metadata,
                allow_internet_access=internet,
                network={"allow_public_traffic": False},
                lifecycle={"on_timeout": "pause", "auto_resume": False},
                idempotency_key=key,
                logger=_QUIET,
                **self._options(),
            )
        await self._answering(made)
        return made

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """The sandbox of this id, resumed if it was paused. Raises Missing, SandboxUnavailable."""
        from e2b import AsyncSandbox

        async with self.translated():
            found = await AsyncSandbox.connect(
                sandbox_id, timeout=self.settings.timeout_seconds, logger=_QUIET, **self._options()
            )
        await self._answering(found)
        return found

    async def _answering(self, sandbox: AsyncSandbox) -> None:
        """The edge may not know a sandbox in the first moments after it was made or resumed."""
        for _ in range(READY_TRIES):
            async with self.translated():
                if await sandbox.is_running(request_timeout=self.settings.request_seconds):
                    return
            await asyncio.sleep(READY_PAUSE)
        raise SandboxUnavailable(
            f"The E2B sandbox {sandbox.sandbox_id} was started and does not answer.",
            fix="Try again; see https://status.e2b.dev if it stays so.",
        )

    async def list(self, metadata: dict[str, str], *, running: bool = False) -> list[Found]:
        """Those with this metadata, the newest first. Raises SandboxUnavailable."""
        from e2b import AsyncSandbox, SandboxQuery, SandboxState

        states = [SandboxState.RUNNING] if running else [SandboxState.RUNNING, SandboxState.PAUSED]
        found: list[Found] = []
        async with self.translated():
            pages = AsyncSandbox.list(query=SandboxQuery(metadata=metadata, state=states), limit=100, **self._options())
            while pages.has_next and len(found) < MAX_LISTED:
                for each in await pages.next_items():
                    alive = each.state is SandboxState.RUNNING
                    found.append(Found(each.sandbox_id, dict(each.metadata or {}), alive))
        return found

    async def pause(self, sandbox_id: str) -> None:
        """Idempotent; one that is gone stays gone. Raises SandboxUnavailable."""
        from e2b import AsyncSandbox

        with contextlib.suppress(Missing):
            async with self.translated():
                await AsyncSandbox.pause(sandbox_id, **self._options())

    async def kill(self, sandbox_id: str) -> None:
        """Idempotent. Raises SandboxUnavailable."""
        from e2b import AsyncSandbox

        with contextlib.suppress(Missing):
            async with self.translated():
                await AsyncSandbox.kill(sandbox_id, **self._options())

    @contextlib.asynccontextmanager
    async def translated(self, seconds: float | None = None) -> AsyncIterator[None]:
        """The SDK's failures in the port's terms, within a deadline.

        Raises Missing, SandboxUnavailable; how a command ended (CommandExitException) is left as it is.
        """
        from e2b import CommandExitException, exceptions

        gone = (exceptions.SandboxNotFoundException, exceptions.SandboxNotRunningException)
        try:
            async with asyncio.timeout(seconds or self.settings.request_seconds * 2):
                yield
        except (MilepostError, CommandExitException, Missing):
            raise
        except gone as error:
            raise Missing(str(error)) from None
        except exceptions.AuthenticationException:
            raise SandboxUnavailable(
                "E2B does not accept the API key.", fix="Check sandbox.e2b.api_key; keys are made in E2B's dashboard."
            ) from None
        except exceptions.RateLimitException:
            raise SandboxUnavailable("E2B takes no more requests now (rate limit).", fix="Try again later.") from None
        except exceptions.ServiceBusyException:
            raise SandboxUnavailable("E2B is busy and takes no sandbox now.", fix="Try again later.") from None
        except (TimeoutError, exceptions.TimeoutException) as error:
            raise SandboxUnavailable(f"E2B did not answer in time ({_words(error)}).", fix="Try again.") from None
        except exceptions.SandboxException as error:
            words = _words(error)
            missing = "404" in words and "template" in words.lower()
            fix = f"Check sandbox.e2b.template, which is '{self.settings.template}'." if missing else None
            raise SandboxUnavailable(f"E2B refused: {words}.", fix=fix) from None
        except Exception as error:
            # The SDK lets errors of three HTTP and RPC libraries through.
            raise SandboxUnavailable(f"E2B cannot be reached ({_words(error)}).", fix="Check the network.") from None


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
