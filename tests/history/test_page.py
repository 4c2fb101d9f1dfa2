"""The HTML page in a real browser: nothing runs, nothing is fetched, everything can be read and searched."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.ports.ledger import Ledger
from tests.history.build import Builder, Call, Said
from tests.history.test_export import ATTACKS, _attacked, _export
from tests.support.chromium import Page, browser_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def _page(ledger: Ledger, folder: Path, session: str) -> str:
    path = folder / "page.html"
    path.write_text(await _export(ledger, folder, session, "html"), encoding="utf-8")
    return path.as_uri()


async def _look_for(page: Page, word: str) -> None:
    await page.run(f"document.getElementById('find').value = '{word}'")
    await page.run("document.getElementById('find').dispatchEvent(new Event('input'))")


async def test_attacks_do_nothing(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    url = await _page(sqlite_ledger, tmp_path, await _attacked(sqlite_ledger))
    async with browser_page() as page:
        await page.open(url)
        assert await page.run("typeof window.hacked") == "undefined"
        await page.run(
            "document.querySelectorAll('main a').forEach((a) => a.dispatchEvent(new MouseEvent('mouseover')))"
        )
        await page.run("document.getElementById('fold').click()")
        assert await page.run("typeof window.hacked") == "undefined"
        assert await page.run("document.scripts.length") == 1
        assert await page.run("document.images.length + document.querySelectorAll('iframe, svg, base').length") == 0
        assert await page.run("document.querySelectorAll('.turn').length") == len(ATTACKS) + 2
        assert await page.run("location.href") == url
        assert [request for request in page.requests if request != "data:,"] == [url]
        assert page.faults == []


async def test_reading_and_searching(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    builder = Builder(sqlite_ledger)
    session = await builder.session("Repair the shop")
    for number in range(4):
        call = Call("bash", f'{{"command": "run {number}"}}', f"needle-{number} in the output")
        await builder.turn(session, Said(f"Request {number}", f"Answer **{number}**", [call]))
    url = await _page(sqlite_ledger, tmp_path, session)
    async with browser_page() as page:
        await page.open(f"{url}#turn-3")
        assert await page.run("document.querySelector(':target').id") == "turn-3"
        assert await page.run("getComputedStyle(document.querySelector('details .in')).display") != ""
        assert await page.run("[...document.querySelectorAll('details')].every((card) => !card.open)")
        await _look_for(page, "NEEDLE-2")
        await page.until("document.getElementById('told').textContent === '1 of 4 turns'")
        shown = "[...document.querySelectorAll('.turn')].filter((turn) => !turn.hidden).map((turn) => turn.id).join()"
        assert await page.run(shown) == "turn-3"
        assert await page.run("document.querySelectorAll('details[open]').length") == 1
        assert await page.run("CSS.highlights.get('found').size") == 1
        assert await page.run("document.querySelectorAll('nav li:not([hidden])').length") == 1
        await _look_for(page, "")
        await page.until("document.getElementById('told').textContent === ''")
        assert await page.run("document.querySelectorAll('.turn:not([hidden])').length") == 4
        assert await page.run("document.querySelectorAll('details[open]').length") == 0
        await page.run("document.getElementById('fold').click()")
        assert await page.run("document.querySelectorAll('details[open]').length") == 4
        assert page.faults == []


async def test_light_dark_print_and_without_script(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    builder = Builder(sqlite_ledger)
    session = await builder.session("Repair the shop")
    await builder.turn(session, Said("Request", "Answer", [Call("bash", "{}", "hidden output")]))
    url = await _page(sqlite_ledger, tmp_path, session)
    ground = "getComputedStyle(document.body).backgroundColor"
    async with browser_page() as page:
        seen = {}
        for scheme in ("light", "dark"):
            feature = [{"name": "prefers-color-scheme", "value": scheme}]
            await page.call("Emulation.setEmulatedMedia", features=feature)
            await page.open(url)
            seen[scheme] = await page.run(ground)
            assert await page.screenshot()
        assert seen == {"light": "rgb(251, 250, 248)", "dark": "rgb(20, 22, 26)"}
        await page.call("Emulation.setEmulatedMedia", media="print", features=[])
        assert await page.run(ground) == "rgb(255, 255, 255)"
        assert await page.run("getComputedStyle(document.querySelector('nav')).display") == "none"
        await page.run("dispatchEvent(new Event('beforeprint'))")
        assert await page.run("document.querySelector('details').open")
        await page.run("dispatchEvent(new Event('afterprint'))")
        assert not await page.run("document.querySelector('details').open")
    async with browser_page(script=False) as page:
        await page.open(url)
        document = (await page.call("DOM.getDocument"))["root"]["nodeId"]
        bar = (await page.call("DOM.querySelector", nodeId=document, selector=".script"))["nodeId"]
        await page.call("CSS.enable")
        style = (await page.call("CSS.getComputedStyleForNode", nodeId=bar))["computedStyle"]
        assert {"name": "display", "value": "none"} in style  # controls that need a script are not shown without one
        card = (await page.call("DOM.querySelector", nodeId=document, selector="details summary"))["nodeId"]
        assert card
