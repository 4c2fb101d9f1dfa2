"""The codec by itself: what it makes cannot be read or changed without the key, and says which key it needs."""

from __future__ import annotations

import base64
import secrets
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from milepost.domain.errors import ConfigInvalid, PayloadTooLarge
from milepost.temporal.codec import KEY_ID, EncryptionCodec, PayloadUndecodable, parse_key
from milepost.temporal.converter import (
    DATA_CONVERTER,
    ENCODED_MESSAGE,
    MAX_FAILURE_MESSAGE,
    MAX_FAILURE_STACK,
    MAX_PAYLOAD_BYTES,
    encrypting,
)

OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)
KEYS = {"old": OLD, "new": NEW}


@given(st.binary(max_size=2_000), st.dictionaries(st.text("abc", min_size=1), st.binary(max_size=20), max_size=3))
async def test_what_is_encrypted_comes_back_and_is_never_the_same_twice(
    data: bytes, metadata: dict[str, bytes]
) -> None:
    codec = EncryptionCodec(KEYS, "new")
    payload = Payload(data=data, metadata=metadata)
    first, second = await codec.encode([payload, payload])
    assert await codec.decode([first, second]) == [payload, payload]
    assert first.data != second.data
    assert len(data) < 8 or data not in first.data


async def test_the_overhead_keeps_a_payload_within_an_event() -> None:
    (sealed,) = await EncryptionCodec(KEYS, "new").encode([Payload(data=bytes(MAX_PAYLOAD_BYTES))])
    assert sealed.ByteSize() < MAX_PAYLOAD_BYTES + 256


async def test_any_of_the_keys_decrypts_and_the_current_one_encrypts() -> None:
    (old,) = await EncryptionCodec({"old": OLD}, "old").encode([Payload(data=b"x")])
    codec = EncryptionCodec(KEYS, "new")
    assert (await codec.decode([old]))[0].data == b"x"
    assert (await codec.encode([Payload(data=b"x")]))[0].metadata[KEY_ID] == b"new"


async def test_what_was_not_encrypted_is_read_as_it_is() -> None:
    plain = Payload(data=b"x", metadata={"encoding": b"json/plain"})
    assert await EncryptionCodec(KEYS, "new").decode([plain]) == [plain]


async def test_a_missing_key_is_named() -> None:
    (sealed,) = await EncryptionCodec(KEYS, "new").encode([Payload(data=b"x")])
    with pytest.raises(PayloadUndecodable, match="'new', which this process does not have") as refused:
        await EncryptionCodec({"old": OLD}, "old").decode([sealed])
    assert "temporal.encryption.keys" in str(refused.value)


@pytest.mark.parametrize("position", [0, 11, 12, 20, -1])
async def test_nothing_changed_is_accepted(position: int) -> None:
    codec = EncryptionCodec(KEYS, "new")
    (sealed,) = await codec.encode([Payload(data=b"some data")])
    changed = bytearray(sealed.data)
    changed[position] ^= 1
    with pytest.raises(PayloadUndecodable, match="'new' of this process does not fit"):
        await codec.decode([Payload(data=bytes(changed), metadata=sealed.metadata)])
    renamed = Payload(data=sealed.data, metadata={**sealed.metadata, KEY_ID: b"old"})
    for damaged in (Payload(data=b"", metadata=sealed.metadata), renamed):
        with pytest.raises(PayloadUndecodable, match="does not fit"):
            await codec.decode([damaged])


async def test_the_same_name_for_another_key_is_said_so() -> None:
    (sealed,) = await EncryptionCodec({"new": OLD}, "new").encode([Payload(data=b"x")])
    with pytest.raises(PayloadUndecodable, match="a changed key needs a name of its own"):
        await EncryptionCodec(KEYS, "new").decode([sealed])


async def test_a_process_without_any_key_says_so() -> None:
    payloads = await encrypting(EncryptionCodec(KEYS, "new")).encode(["text"])
    with pytest.raises(PayloadUndecodable, match="'new', which this process does not have"):
        await DATA_CONVERTER.decode(payloads)


async def test_a_failure_is_bounded_encrypted_and_comes_back() -> None:
    converter = encrypting(EncryptionCodec(KEYS, "new"))
    cause = RuntimeError("the cause " * 10_000)
    error = ApplicationError("the text " * 10_000, type="some_code", non_retryable=True)
    error.__cause__ = cause
    failure = Failure()
    await converter.encode_failure(error, failure)
    for shown, text in ((failure, "the text"), (failure.cause, "the cause")):
        assert (shown.message, shown.stack_trace) == (ENCODED_MESSAGE, "")
        assert text.encode() not in failure.SerializeToString()
    assert failure.application_failure_info.type == "some_code"
    assert failure.ByteSize() < 2 * (MAX_FAILURE_MESSAGE + MAX_FAILURE_STACK + 512)
    back = await converter.decode_failure(failure)
    assert isinstance(back, ApplicationError)
    assert back.message.startswith("the text") and back.type == "some_code" and back.non_retryable
    assert str(back.__cause__).startswith("RuntimeError: the cause")


async def test_a_failure_that_came_from_temporal_is_encrypted_again_with_its_causes() -> None:
    converter = encrypting(EncryptionCodec(KEYS, "new"))
    first, second = Failure(), Failure()
    error, cause = ApplicationError("the text"), ApplicationError("the cause")
    error.__cause__, cause.__cause__ = cause, ApplicationError("the root")
    await converter.encode_failure(error, first)
    wrapped = ApplicationError("the new text")
    wrapped.__cause__ = await converter.decode_failure(first)
    await converter.encode_failure(wrapped, second)
    for text in (b"the text", b"the cause", b"the root", b"the new text"):
        assert text not in second.SerializeToString()
    back: BaseException | None = await converter.decode_failure(second)
    said = []
    while back is not None:
        said.append(str(back))
        back = back.__cause__
    assert said == ["the new text", "the text", "the cause", "the root"]


async def test_sizes_are_checked_before_the_encryption() -> None:
    with pytest.raises(PayloadTooLarge):
        await encrypting(EncryptionCodec(KEYS, "new")).encode(["x" * MAX_PAYLOAD_BYTES])


KEY_FORMS = {
    "base64": base64.b64encode(NEW).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(NEW).decode(),
    "digits": NEW.hex(),
    "a line": base64.b64encode(NEW).decode() + "\n",
}


@pytest.mark.parametrize("form", KEY_FORMS)
def test_a_key_is_read(form: str) -> None:
    assert parse_key("new", KEY_FORMS[form]) == NEW


NO_KEYS = {
    "nothing": "",
    "a passphrase": "correct horse battery staple",
    "a short one": base64.b64encode(NEW[:16]).decode(),
    "no ASCII": "é" * 32,
}


@pytest.mark.parametrize("case", NO_KEYS)
def test_what_is_no_key_is_refused_without_repeating_it(case: str) -> None:
    text = NO_KEYS[case]
    with pytest.raises(ConfigInvalid) as refused:
        parse_key("new", text)
    assert "openssl rand -base64 32" in str(refused.value) and "'new'" in str(refused.value)
    assert not text or text not in str(refused.value)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigInvalid, match=r"milepost\[encryption\]"):
        EncryptionCodec(KEYS, "new")
