"""Encrypting what Temporal stores: AES-256-GCM over whole payloads.

Each payload names the key it was encrypted with, so that keys can be changed while workflows run: every process gets
the new key beside the old one first, then it becomes the current one, and the old one goes when nothing needs it.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from milepost.domain.errors import ConfigInvalid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
"""Names of Temporal's own examples, which codec servers know."""

KEY_BYTES = 32
NONCE_BYTES = 12
"""Random for each payload: a key is good for four billion of them."""


class PayloadUndecodable(Exception):
    """What Temporal stores is encrypted with a key that this process does not have; one that has it can go on.

    No domain error: those fail a workflow, and this must only fail its task, which Temporal tries again.
    """


class EncryptionCodec(PayloadCodec):
    """Encrypts with the current key, decrypts with any of the keys. What is not encrypted is read as it is."""

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        """`keys` are 32 bytes by id. Raises ConfigInvalid if the library is missing."""
        self._ciphers = {key_id: _cipher(key) for key_id, key in keys.items()}
        self._current = current

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Raises PayloadUndecodable: the key is not there, or does not fit."""
        return [self._decrypted(payload) if is_encrypted(payload) else payload for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        key_id = self._current.encode("ascii")
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._ciphers[self._current].encrypt(nonce, payload.SerializeToString(), _bound(key_id))
        return Payload(metadata={"encoding": ENCODING, KEY_ID: key_id}, data=nonce + sealed)

    def _decrypted(self, payload: Payload) -> Payload:
        from cryptography.exceptions import InvalidTag

        key_id = payload.metadata[KEY_ID]
        cipher = self._ciphers.get(key_id.decode("ascii", "replace"))
        if cipher is None:
            raise unreadable(payload)
        nonce, sealed = payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, sealed, _bound(key_id)))
        except (InvalidTag, ValueError) as error:
            raise PayloadUndecodable(
                f"The key '{_key_name(payload)}' of this process does not fit what Temporal stores under that name. "
                "Give every process of the instance the same keys; a changed key needs a name of its own."
            ) from error


def is_encrypted(payload: Payload) -> bool:
    """Whether a codec of this kind made the payload."""
    return bool(payload.metadata.get("encoding") == ENCODING)


def _key_name(payload: Payload) -> str:
    return payload.metadata[KEY_ID].decode("ascii", "replace")[:80]


def unreadable(payload: Payload) -> PayloadUndecodable:
    """The error for a payload whose key this process does not have."""
    return PayloadUndecodable(
        f"What Temporal stores is encrypted with the key '{_key_name(payload)}', which this process does not have. "
        "Add it to temporal.encryption.keys; it is needed until the turns that began with it have ended."
    )


def parse_key(key_id: str, text: str) -> bytes:
    """The key that a secret holds: 32 bytes as base64 or hexadecimal digits.

    Raises:
        ConfigInvalid: it holds something else; the text is not repeated.
    """
    text = text.strip()
    for decode in (bytes.fromhex, _from_base64):
        try:
            key = decode(text)
        except (ValueError, binascii.Error):
            continue
        if len(key) == KEY_BYTES:
            return key
    raise ConfigInvalid(
        f"The secret of the encryption key '{key_id}' is not {KEY_BYTES} bytes in base64.",
        field=f"temporal.encryption.keys.{key_id}",
        fix=f"Make one with: openssl rand -base64 {KEY_BYTES}",
    )


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigInvalid(
            "'temporal.encryption' needs the package 'cryptography'.",
            field="temporal.encryption",
            fix='Install it with: pip install "milepost[encryption]"',
        ) from error
    return AESGCM(key)


def _bound(key_id: bytes) -> bytes:
    """What the encryption authenticates beside the payload: its form and the name of its key."""
    return ENCODING + b"\0" + key_id
