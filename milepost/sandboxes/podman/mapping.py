"""Which host user a container's user is, so that files in the workspace belong to the person.

Rootless: `keep-id` maps the person to the container's user 1000.

Root: the container gets a user namespace of its own whose ids have no meaning on the host, and the workspace is bound
with an id-mapped mount (crun) that translates exactly one user and one group: the workspace's owner and the
container's user 1000. A process that escaped its mounts would be nobody on the host. Without id-mapped mounts (some
file systems have none) the owner itself is mapped into the namespace, unless it is root: that is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGENT = 1000
BRIDGE = AGENT + 1
"""The user of the process that copies bytes to the supervisor. Not the commands' one: they could trace it, write to
its pipes and kill it."""
RANGE = 65536
DEFAULT_BASE = 2_000_027_648
"""First host id for containers of root: above what systemd hands out to containers, below 2**31."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """Fields of the container's specification, and options of the workspace mount."""

    spec: dict[str, Any]
    mount_options: tuple[str, ...] = ()
    first_id: int = 0
    """As the service sees it, the id that is 0 in the container. Only where that holds for all of them."""


def rootless() -> Mapping:
    """The person is the container's user; all other ids are the person's subordinate ones."""
    return Mapping({"userns": {"nsmode": "keep-id", "value": f"uid={AGENT},gid={AGENT}"}})


def root_idmapped(owner: tuple[int, int], base: int) -> Mapping:
    """`owner` is (uid, gid) of the workspace on the host."""
    uid, gid = owner
    option = f"idmap=uids={uid}-{base + AGENT}-1;gids={gid}-{base + AGENT}-1"
    return Mapping(_private([_entry(0, base, RANGE)], [_entry(0, base, RANGE)]), (option,))


def root_direct(owner: tuple[int, int], base: int) -> Mapping:
    """For an owner that is not root only: the container's user is the owner."""
    if 0 in owner:
        raise ValueError("root must never be mapped into a container")
    uids, gids = (_around(host, base) for host in owner)
    return Mapping(_private(uids, gids))


def plain(base: int | None) -> Mapping:
    """For a container without a Workspace. As root (`base`) its ids mean nothing on the host."""
    if base is None:
        return Mapping({})
    return Mapping(_private([_entry(0, base, RANGE)], [_entry(0, base, RANGE)]), first_id=base)


def _entry(inside: int, outside: int, size: int) -> dict[str, int]:
    return {"container_id": inside, "host_id": outside, "size": size}


def _around(host: int, base: int) -> list[dict[str, int]]:
    above = AGENT + 1
    return [_entry(0, base, AGENT), _entry(AGENT, host, 1), _entry(above, base + above, RANGE - above)]


def _private(uids: list[dict[str, int]], gids: list[dict[str, int]]) -> dict[str, Any]:
    return {
        "userns": {"nsmode": "private"},
        "idmappings": {"HostUIDMapping": False, "HostGIDMapping": False, "UIDMap": uids, "GIDMap": gids},
    }


def container_base(subuid: Path = Path("/etc/subuid"), subgid: Path = Path("/etc/subgid")) -> int:
    """First host id of root's containers: the range the administrator reserved for `containers`, else the default."""
    ranges = [_reserved(path) for path in (subuid, subgid)]
    return ranges[0] if ranges[0] is not None and ranges[0] == ranges[1] else DEFAULT_BASE


def _reserved(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        start, _, size = rest.partition(":")
        if name == "containers" and start.isdigit() and size.isdigit() and int(size) >= RANGE:
            return int(start)
    return None
