"""The secret store: values behind `env:NAME` and `file:PATH`, read when they are needed and never written."""

from __future__ import annotations

from pathlib import Path

from milepost.config.environment import environment
from milepost.domain.errors import SecretMissing
from milepost.security.redaction import Redactor

MAX_SECRET_BYTES = 64 * 1024


class ReferenceSecrets:
    """`SecretStore` over the process environment and files. Relative paths count from `base` (the config's folder).

    `redactor` hides every value that was resolved.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self.redactor = Redactor()

    def resolve(self, reference: str) -> str:
        """See `ports.secrets.SecretStore`. A trailing line break of a file is not part of its secret."""
        scheme, _, name = reference.partition(":")
        if scheme == "env":
            value = environment().get(name, "")
            fix = f"Set the environment variable {name}."
        elif scheme == "file":
            value, fix = self._file(reference, name)
        else:
            raise SecretMissing(
                "A secret reference has an unknown form.", fix="Write env:NAME or file:PATH in the configuration."
            )
        if not value.strip():
            raise SecretMissing(f"The secret reference '{reference}' has no value.", field=reference, fix=fix)
        if not value.isprintable() and scheme == "env":
            raise SecretMissing(f"The secret behind '{reference}' has control characters.", field=reference, fix=fix)
        self.redactor.learn(value)
        return value

    def _file(self, reference: str, name: str) -> tuple[str, str]:
        path = self._base / Path(name).expanduser()
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_SECRET_BYTES + 1)
            value = raw.decode("utf-8").rstrip("\r\n")
        except OSError as error:
            raise SecretMissing(
                f"The secret reference '{reference}' cannot be read: {error.strerror}.",
                field=reference,
                fix=f"Put the secret into {path} and let this user read it.",
            ) from error
        except UnicodeDecodeError as error:
            raise SecretMissing(f"The secret file of '{reference}' is not UTF-8 text.", field=reference) from error
        if len(raw) > MAX_SECRET_BYTES:
            raise SecretMissing(f"The secret file of '{reference}' is over {MAX_SECRET_BYTES} bytes.", field=reference)
        return value, f"Put the secret into {path}."
