"""Images that lack commands: found out, completed once where the network allows, refused by name where not."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.errors import SandboxUnavailable
from milepost.ports.sandbox import Exec, SandboxSpec
from milepost.sandboxes.podman import commands, derive
from milepost.sandboxes.podman import mapping as mappings
from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi
from milepost.sandboxes.podman.provider import DEFAULT_IMAGE, PodmanProvider
from tests.support.podman import new_instance, remove_owned

pytestmark = pytest.mark.podman

BARE = (
    "mkdir -p /opt/kept && mv /usr/bin/git /usr/bin/find /opt/kept/ && echo ID=debian > /etc/os-release && "
    "printf '#!/bin/sh\\n[ \"$1\" = install ] && cp /opt/kept/* /usr/bin/; exit 0\\n' > /usr/bin/apt-get && "
    "chmod 755 /usr/bin/apt-get"
)
"""Takes two commands away, and has a package manager that brings them back without any network."""


async def variant(provider: PodmanProvider, script: str) -> str:
    """An image made of the default one by a script as its root; returns its name."""
    api: PodmanApi = await provider._service.api()
    host = await provider._opener.host(api)
    mapping = mappings.plain(None if host.rootless else mappings.container_base())
    tag = f"localhost/milepost-test:{uuid.uuid4().hex[:12]}"
    labels = {specs.INSTANCE: provider.instance_id, specs.SESSION: "probe"}
    base = await api.image(DEFAULT_IMAGE)
    assert base is not None
    keep = derive.Keep(tag, provider._data_root, mapping.first_id)
    made = derive.Script(script, 60, writes=True)
    ended = await derive.run(api, str(base["Id"]), made, labels, mapping, keep=keep)
    assert ended.exit_code == 0, ended
    return tag


@pytest.fixture
async def provider(podman_root: Path) -> AsyncIterator[PodmanProvider]:
    """One that may use a test's image in the place of a curated one."""
    made = PodmanProvider(podman_root, new_instance())
    tags: list[str] = []
    made._opener.settings = replace(made._opener.settings, images=_Recorded(tags))
    yield made
    await remove_owned(made)
    api: PodmanApi = await made._service.api()
    for tag in tags:
        found = await api.image(tag)
        if found is not None:
            await api.discard_image(str(found["Id"]))
    await made.close()


class _Recorded(dict[str, str]):
    def __init__(self, tags: list[str]) -> None:
        super().__init__()
        self.tags = tags

    def __setitem__(self, key: str, value: str) -> None:
        self.tags.append(value)
        super().__setitem__(key, value)


def spec_of(provider: PodmanProvider, workspace: Path, network: str) -> SandboxSpec:
    return SandboxSpec("s", provider.instance_id, str(workspace), image="debian:bookworm-slim", network=network)


@pytest.mark.slow
async def test_what_an_image_lacks_is_installed_into_a_copy_of_it_once(
    provider: PodmanProvider, tmp_path: Path
) -> None:
    provider._opener.settings.images["debian:bookworm-slim"] = await variant(provider, BARE)
    with pytest.raises(SandboxUnavailable, match=r"no git, find, which sandboxes need. The sandbox has no network"):
        await provider.open(spec_of(provider, tmp_path, "none"))
    assert await provider.owned() == ()
    box = await provider.open(spec_of(provider, tmp_path, "bridge"))
    outcome = await box.perform(
        uuid.uuid4().hex, Exec("git --version && find . -maxdepth 0 && stat -c %u:%g /usr/bin/git /")
    )
    assert outcome.exit_code == 0, outcome
    assert outcome.stdout.split()[-2:] == [b"0:0", b"0:0"], "owners are those of the container"
    api: PodmanApi = await provider._service.api()
    (container,) = await provider.owned()
    used = (await api.container(container.container_id) or {})["Image"]
    again = PodmanProvider(provider._data_root, provider.instance_id, images=dict(provider._opener.settings.images))
    other = SandboxSpec("t", provider.instance_id, str(tmp_path), image="debian:bookworm-slim", network="bridge")
    await again.open(other)
    found = [each for each in await again.owned() if each.session_id == "t"]
    assert (await api.container(found[0].container_id) or {})["Image"] == used, "installed once"
    await remove_owned(again)
    await again.close()
    await api.discard_image(used)


@pytest.mark.slow
async def test_what_cannot_be_helped_is_named(provider: PodmanProvider, tmp_path: Path) -> None:
    failing = BARE.replace("cp /opt/kept/* /usr/bin/; exit 0", "echo no such mirror; exit 1")
    provider._opener.settings.images["debian:bookworm-slim"] = await variant(provider, failing)
    with pytest.raises(SandboxUnavailable, match="Installing them failed") as refused:
        await provider.open(spec_of(provider, tmp_path, "bridge"))
    assert "apt-get install -y --no-install-recommends git findutils" in str(refused.value.fix)
    provider._opener.settings.images["debian:bookworm-slim"] = await variant(
        provider, BARE.replace("ID=debian", "ID=plan9")
    )
    with pytest.raises(SandboxUnavailable, match="has no git, find") as refused:
        await provider.open(spec_of(provider, tmp_path, "bridge"))
    assert "Debian, Ubuntu or Alpine" in str(refused.value.fix)
    with pytest.raises(SandboxUnavailable, match=r"podman pull docker\.io/library/alpine"):
        missing = SandboxSpec("s", provider.instance_id, str(tmp_path), image="alpine:3.20")
        await provider.open(missing)
    assert await provider.holdings() == ()


def test_what_would_be_run() -> None:
    lacks = commands.Equipment(("git", "python3"), "ubuntu")
    assert "apt-get install -y --no-install-recommends git python3" in str(lacks.recipe)
    assert commands.Equipment(("git",), "alpine").recipe == "apk add --no-cache git"
    assert commands.Equipment(("sh",), "debian").recipe is None
    assert commands.Equipment(("git",), "").recipe is None
