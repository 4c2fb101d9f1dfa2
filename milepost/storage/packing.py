"""Values that are kept compressed: raw DEFLATE (RFC 1951) with a dictionary of the texts that the ledger repeats.

A packed value begins with a byte that names its form; whatever begins with another byte is kept as it is, so rows that
were written before there was packing need no change. Digests, hashes and the chain of events are of the plain bytes.
"""

from __future__ import annotations

import zlib
from typing import Final

from sqlalchemy import LargeBinary
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

LEVEL: Final = 6
MAX_PLAIN_BYTES: Final = 256 * 1024 * 1024
"""No value that the ledger keeps is that long; one that says so was not written by us."""

_PLAIN: Final = b"\x00"
_DICTIONARY_1: Final = b"\x01"
_RAW: Final = -15
_SHORTEST: Final = 24
"""Fewer bytes hardly become less."""

WORDS_1: Final = (
    b'"approval_id":null,"wait_seconds":0.0,"approvals":{"bash":"ask","edit_file":"ask","write_file":"ask"},'
    b'"tools_unavailable":null,"fallbacks":[],"hooks":[],"custom_tools":[],"expires_at":,"input_digest":"","preview":"",'
    b'turn.failedturn.stopped{"error_code":"","error_message":"","reason":"Stopped on request.","turn_id":"trn_"'
    b'{"omitted":[],"previous":"","previous_turn":"trn_","tree":"","moment":"before","moment":"after","error":null,'
    b'{"agent":"default","attempt":1,"call_id":"call_toolu_","detail":{"created":true,"bytes":,"replacements":1,"line":,'
    b'"size":,"first_line":1,"total_lines":,"end":true,"shown_lines":,"shown":,"repaired":true,"truncated":true},'
    b'"effect_class":"attachable","state":"failed","is_error":true,"cancelled","uncertain",'
    b'"tool":"read_file","tool":"write_file","tool":"edit_file","tool":"list_dir","tool":"grep","tool":"glob",'
    b'"tool":"bash"{\\"path\\": \\"{\\"command\\": \\"{"blob":null,"text":"{\\"command\\": \\"'
    b'{"blob":{"digest":"","media_type":"text/plain; charset=utf-8","size":},"text":"",'
    b'{"kind":"reasoning","text":""},"provider_state":{"data":{"blob":null,"text":""},"model":"","provider":""},'
    b'/started/1{"agent":"default","attempt":1,"call_id":"call_","effect_id":"","index":0,"round":1,"sandbox":"",'
    b'"tool":"bash","turn_id":"trn_"}/called{"agent":"default","attempt":1,"diagnostics":[],"effect_id":"",'
    b'"finish":"tool_calls","message":{"kind":"assistant","parts":[{"arguments":{"blob":null,"text":"{}"},'
    b'"call_id":"call_","kind":"tool_call","recovered":false,"tool":"bash"}],"provider_state":null},'
    b'{"calls":[{"index":0,"input_digest":"","malformed":false,"parallel":"exclusive","parallel":"safe",'
    b'"sandboxed":true,"timeout_seconds":180.0,"tool":"bash"}],"effect_id":"","error":null,"error_code":null,'
    b'"finish":"tool_calls","outcome":"answered","text_digest":""}'
    b'{"calls":[],"effect_id":"","error":null,"error_code":null,"finish":"stop","outcome":"answered","text_digest":""}'
    b'{"approval_id":null,"effect_id":"","is_error":false,"result_digest":"","state":"succeeded","stopped":false,'
    b'"wait_seconds":0.0}/begun{"idempotency_key":null,"number":1,"request":{"options":{"agent":null,"budget":null,'
    b'"model":null,"provider":null,"script":null},"text":{"blob":null,"text":""}},"retry_of":null,"turn_id":"trn_",'
    b'"workflow_id":"/turn/trn_"}/started{"shared_payload":"","turn_id":"trn_"}'
    b'/default/tool.1.0/finished{"agent":"default","attempt":1,"call_id":"call_","detail":{"exit_code":0},"effect_id":"",'
    b'"full_output":null,"index":0,"is_error":false,"output":{"blob":null,"text":"'
    b'"},"round":1,"shortened":null,"state":"succeeded","tool":"bash","turn_id":"trn_"}'
    b'/default/output{"agent":"default","partial":false,"rounds":2,"text":{"blob":null,"text":""},"turn_id":"trn_",'
    b'/called{"agent":"default","attempt":1,"diagnostics":[],"effect_id":"","finish":"stop","message":{"kind":'
    b'"assistant","parts":[{"kind":"text","text":""}],"provider_state":null},"model":"","provider":"","round":2,'
    b'"route":0,"turn_id":"trn_","usage":{"cache_write_tokens":0,"cached_input_tokens":0,"complete":true,"cost":'
    b'{"complete":false,"currency":"USD","micros":"0"},"input_tokens":0,"output_tokens":0,"reasoning_tokens":0}}'
    b'/ended{"turn_id":"trn_","usage":{"cache_write_tokens":0,"cached_input_tokens":0,"complete":true,"cost":'
    b'{"complete":true,"currency":"USD","micros":"0"},"input_tokens":0,"output_tokens":0,"reasoning_tokens":0}}'
)
"""Never to be changed: what was packed with it needs it. Other words are another form."""


class Unpackable(ValueError):
    """The bytes are not what `packed` made."""


def packed(data: bytes, known: bytes = b"") -> bytes:
    """The form to keep `data` in: compressed, or as it is if that is not longer.

    `known` is what the row has besides, and need not be kept again; `unpacked` has to be given the same.
    """
    if len(data) >= _SHORTEST:
        words = WORDS_1 + known
        compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _RAW, zlib.DEF_MEM_LEVEL, zlib.Z_DEFAULT_STRATEGY, words)
        smaller = _DICTIONARY_1 + compressor.compress(data) + compressor.flush()
        if len(smaller) < len(data):
            return smaller
    return _PLAIN + data if data[:1] in (_PLAIN, _DICTIONARY_1) else data


def unpacked(kept: bytes, known: bytes = b"") -> bytes:
    """What was given to `packed`. Raises Unpackable."""
    form = kept[:1]
    if form == _PLAIN:
        return kept[1:]
    if form != _DICTIONARY_1:
        return kept
    expander = zlib.decompressobj(_RAW, WORDS_1 + known)
    try:
        data = expander.decompress(kept[1:], MAX_PLAIN_BYTES)
    except zlib.error as error:
        raise Unpackable(str(error)) from error
    if not expander.eof or expander.unused_data:
        raise Unpackable("the compressed bytes do not end where they should")
    return data


class Packed(TypeDecorator[bytes]):
    """A column of bytes that are kept packed; statements give and get them plain. Raises Unpackable on damage."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else packed(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else unpacked(bytes(value))
