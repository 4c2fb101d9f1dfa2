"""Nothing that is printed steers the terminal, and JSON says the same all the same."""

from __future__ import annotations

import json

import pytest

from cli.output import Output, printable, short

CONTROLS = [chr(code) for code in (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0))]
BIDI = [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))]


@pytest.mark.parametrize("sign", [*CONTROLS, *BIDI, "\ud800"], ids=lambda sign: f"U+{ord(sign):04X}")
def test_signs_that_steer_a_terminal(sign: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(f"a{sign}b") == "a\ufffdb"
    assert sign not in short(f"a{sign}b")
    out = Output(as_json=True)
    for show in (out.line, out.note, lambda text: out.table(["NAME"], [[text]])):
        show(f"a{sign}b")
        shown = capsys.readouterr()
        assert sign not in shown.out + shown.err
    for write in (out.document, out.record):
        write({"text": f"a{sign}b"})
        text = capsys.readouterr().out
        assert sign not in text
        assert json.loads(text) == {"text": f"a{sign}b"}


def test_text_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Tab\tand line\nstay, Grüße, 日本, שלום too"
    assert printable(text) == text
    Output(as_json=True).record(text)
    assert "שלום" in capsys.readouterr().out
