"""Which sandbox images are trusted, and where they lie. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from milepost.domain.errors import ImageNotAllowed

CURATED = ("alpine:3.20", "debian:bookworm-slim", "ubuntu:24.04", "python:3.12-slim", "node:20-slim", "rust:bookworm")
"""Images that a Session may name. Each can be replaced by a local one; none is ever pulled."""

REGISTRY = "docker.io/library/"


def short_name(image: str) -> str:
    """A curated image's name without the registry it is known to come from."""
    bare = image.removeprefix(REGISTRY)
    return bare if bare in CURATED else image


def local_reference(image: str, replacements: Mapping[str, str]) -> str:
    """The local image that stands for the one that was named."""
    name = short_name(image)
    if name in replacements:
        return replacements[name]
    return f"{REGISTRY}{name}" if name in CURATED else image


def check_image(image: str, trusted: Collection[str], *, any_image: bool) -> None:
    """Raise ImageNotAllowed unless the image is curated, one the configuration names, or all are allowed."""
    if any_image or short_name(image) in CURATED or image in trusted:
        return
    raise ImageNotAllowed(
        f"The image {image} is not among those that sandboxes are made of.",
        field="image",
        fix=f"Name one of {', '.join(CURATED)}, or let any image in: sandbox.allow_untrusted_images: true",
    )
