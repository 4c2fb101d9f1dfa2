"""Whether an image has what the sandbox and its tools need, and installing what is missing into a copy of it.

The copy is an image of its own, named by what it was made from, so that it is made once. No Workspace is part of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from milepost.domain.errors import SandboxUnavailable
from milepost.sandboxes.podman import derive
from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi, PodmanError
from milepost.sandboxes.podman.mapping import Mapping

REPOSITORY = "localhost/milepost-provisioned"
PROBE_SECONDS = 60.0
INSTALL_SECONDS = 900.0
PROBE = "probe"
"""Session label of the containers that look and install; no Session has this id."""

PACKAGES = {
    "sh": "",
    "python3": "python3",
    "git": "git",
    "find": "findutils",
    "grep": "grep",
    "sed": "sed",
    "tar": "tar",
    "cat": "coreutils",
}
"""Commands that every image must have, and the package that brings each."""

_LOOK = (
    f"for c in {' '.join(PACKAGES)}; do command -v $c >/dev/null 2>&1 || echo missing $c; done; "
    "python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1 || echo missing python3; "
    "[ -r /etc/os-release ] && . /etc/os-release && echo system $ID"
)
_INSTALL = {
    "debian": "apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*",
    "alpine": "apk add --no-cache {}",
}
_LIKE = {"debian": "debian", "ubuntu": "debian", "alpine": "alpine"}


@dataclass(frozen=True, slots=True)
class Equipment:
    """What an image lacks, and the distribution it is of."""

    missing: tuple[str, ...]
    system: str

    @property
    def recipe(self) -> str | None:
        """The command that installs what is missing, where one is known."""
        kind = _LIKE.get(self.system)
        packages = [PACKAGES[name] for name in self.missing if PACKAGES[name]]
        return _INSTALL[kind].format(" ".join(packages)) if kind and packages and "sh" not in self.missing else None


class Provisioner:
    """Looks at each image once, and gives the image that sandboxes are made of in its place."""

    def __init__(self, instance_id: str, lease: str, work: Path) -> None:
        self._work = work
        self._labels = {
            specs.INSTANCE: instance_id,
            specs.SESSION: PROBE,
            specs.GENERATION: "0",
            specs.LEASE: lease,
        }
        self._ready: dict[str, str] = {}

    async def equipped(
        self,
        api: PodmanApi,
        name: str,
        image_id: str,
        mapping: Mapping,
        *,
        network: str,
        close: derive.Prepare,
    ) -> str:
        """Id of the image itself, or of its copy with what it lacked.

        `network` is none, or the mode of one that may be used; `close` keeps a container with one from this host.

        Raises:
            SandboxUnavailable: it lacks commands and they cannot be installed; names them and what to do.
        """
        if image_id in self._ready:
            return self._ready[image_id]
        found = await self.look(api, image_id, mapping)
        chosen = image_id
        if found.missing:
            chosen = await self._provisioned(api, name, image_id, found, mapping, network=network, close=close)
        if len(self._ready) > 1000:
            self._ready.clear()
        self._ready[image_id] = chosen
        return chosen

    async def look(self, api: PodmanApi, image_id: str, mapping: Mapping) -> Equipment:
        """What the image lacks. One that cannot even run a shell lacks everything."""
        try:
            ended = await derive.run(api, image_id, derive.Script(_LOOK, PROBE_SECONDS), self._labels, mapping)
        except PodmanError:
            return Equipment(tuple(PACKAGES), "")
        lines = [line.split() for line in ended.words.splitlines()]
        missing = [words[1] for words in lines if len(words) == 2 and words[0] == "missing" and words[1] in PACKAGES]
        system = next((words[1] for words in lines if len(words) == 2 and words[0] == "system"), "")
        return Equipment(tuple(dict.fromkeys(missing)), system)

    async def _provisioned(
        self,
        api: PodmanApi,
        name: str,
        image_id: str,
        found: Equipment,
        mapping: Mapping,
        *,
        network: str,
        close: derive.Prepare,
    ) -> str:
        recipe = found.recipe
        what = f"The image {name} has no {', '.join(found.missing)}, which sandboxes need."
        if recipe is None:
            raise SandboxUnavailable(what, fix="Use an image of Debian, Ubuntu or Alpine, or one that has them.")
        if network == "none":
            raise SandboxUnavailable(
                f"{what} The sandbox has no network, so they cannot be installed.",
                fix="Make an image that has them and name it under sandbox.images, or set sandbox.network: bridge",
            )
        digest = hashlib.sha256(f"{image_id}\0{recipe}".encode()).hexdigest()[:16]
        tag = f"{REPOSITORY}:{digest}"
        present = await api.image(tag)
        if present is None:
            script = derive.Script(recipe, INSTALL_SECONDS, network=network, writes=True)
            ended = await derive.run(
                api,
                image_id,
                script,
                self._labels,
                mapping,
                prepare=close,
                keep=derive.Keep(tag, self._work, mapping.first_id),
            )
            present = await api.image(tag) if ended.exit_code == 0 else None
            if present is None:
                raise SandboxUnavailable(
                    f"{what} Installing them failed: {ended.words[-500:] or 'it did not end in time'}",
                    fix=f"Try by hand: podman run --rm -it {name} sh, then: {recipe}",
                )
        still = await self.look(api, str(present["Id"]), mapping)
        if still.missing:
            await api.discard_image(str(present["Id"]))
            raise SandboxUnavailable(
                f"{what} After installing, {', '.join(still.missing)} is still missing.",
                fix="Name an image that has them under sandbox.images.",
            )
        return str(present["Id"])
