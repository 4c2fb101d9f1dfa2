"""A real Chromium, driven over the DevTools protocol. Needs the distribution's `chromium`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import websockets

from tests.support.needs import unavailable

SECONDS = 90
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    # Whatever a page asks for, no name is looked up and nothing but loopback is dialed.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Page:
    """One tab."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.requests: list[str] = []
        self.faults: list[str] = []
        self._loaded = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol and its answer."""
        number = next(self._ids)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = await self._next()
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    async def open(self, url: str) -> None:
        """Go to an address and wait until it has loaded."""
        before = self._loaded
        await self.call("Page.navigate", url=url)
        while self._loaded == before:
            await self._next()

    async def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(SECONDS):
            while not await self.run(expression):
                await asyncio.sleep(0.05)

    async def screenshot(self) -> bytes:
        """The visible part as PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await asyncio.wait_for(self._socket.recv(), SECONDS))
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Page.loadEventFired":
                self._loaded += 1
            case "Runtime.exceptionThrown":
                self.faults.append(str(message["params"]["exceptionDetails"]))
            case "Log.entryAdded":
                self.faults.append(str(message["params"]["entry"]["text"]))
        return message


@asynccontextmanager
async def browser_page(*, script: bool = True) -> AsyncIterator[Page]:
    """A tab of a browser of its own."""
    found = shutil.which("chromium")
    if found is None:
        unavailable("Chromium", "no `chromium` on PATH; Debian: apt install chromium")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            found,
            *ARGUMENTS,
            f"--user-data-dir={folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            address = await _address(process, Path(folder))
            async with websockets.connect(address, max_size=None, open_timeout=SECONDS) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Network", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Emulation.setScriptExecutionDisabled", value=not script)
                yield page
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 20)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process, folder: Path) -> str:
    """Address of the first tab."""
    async with asyncio.timeout(SECONDS):
        while True:
            assert process.returncode is None, "Chromium ended."
            with contextlib.suppress(OSError, ValueError, LookupError):
                port = int((folder / "DevToolsActivePort").read_text().splitlines()[0])
                listed = await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/json/list")
                return str(next(tab["webSocketDebuggerUrl"] for tab in listed if tab["type"] == "page"))
            await asyncio.sleep(0.1)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
