"""Images: whether one can be opened, a copy that models take, and the text in it. In the limited process only."""

from __future__ import annotations

import io
import subprocess
from typing import Any

from milepost.domain.attachments import MAX_PIXELS, NATIVE_IMAGES, AttachmentState
from milepost.ports.extraction import Extracted

MODEL_IMAGE_BYTES = 3_500_000
"""The strictest provider takes 5 MB in base64."""

MODEL_IMAGE_SIDE = 8_000
COPY_SIDE = 2_000
OCR_SIDE = 4_000
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")


def read_image(data: bytes, kind: str) -> tuple[Extracted, bytes | None]:
    """What is known of an image without its text, and a picture of it in gray for reading that (PNG)."""
    from PIL import Image

    # The limit is our own, and is looked at before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                note = f"The image has {width:,} x {height:,} pixels; the limit is {MAX_PIXELS // 1_000_000} million."
                return Extracted(AttachmentState.FAILED, kind, note=note), None
            image.load()
            copy, copy_type = _copy(image, data, kind)
            return Extracted(AttachmentState.READY, kind, image=copy, image_type=copy_type), _gray(image)
    except MemoryError:
        raise
    except Exception as error:  # whatever decoders raise for broken files
        return Extracted(AttachmentState.FAILED, kind, note=f"The image is damaged ({type(error).__name__})."), None


def _copy(image: Any, data: bytes, kind: str) -> tuple[bytes | None, str]:
    """A copy for models, if they could not take the file itself."""
    from PIL import Image, ImageOps

    small = len(data) <= MODEL_IMAGE_BYTES and max(image.size) <= MODEL_IMAGE_SIDE
    if kind in NATIVE_IMAGES and small:
        return None, ""
    made = ImageOps.exif_transpose(image)
    see_through = "A" in made.getbands() or "transparency" in made.info
    made = made.convert("RGBA" if see_through else "RGB")
    made.thumbnail((COPY_SIDE, COPY_SIDE), Image.Resampling.LANCZOS)
    encoded = _saved(made, "PNG") if see_through or kind not in ("image/jpeg", "image/webp") else b""
    if 0 < len(encoded) <= MODEL_IMAGE_BYTES:
        return encoded, "image/png"
    ground = Image.new("RGB", made.size, "white")
    ground.paste(made, mask=made.getchannel("A") if see_through else None)
    return _saved(ground, "JPEG", quality=85), "image/jpeg"


def _gray(image: Any) -> bytes:
    made = image.convert("L")
    made.thumbnail((OCR_SIDE, OCR_SIDE))
    return _saved(made, "PNG")


def _saved(image: Any, form: str, **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()


def recognized(picture: bytes, program: str, languages: str, seconds: float) -> tuple[str, str | None]:
    """(text, what went wrong) of tesseract, which gets a picture that was made here and nothing else."""
    command = [program, "stdin", "stdout", "-l", languages]
    try:
        done = subprocess.run(command, input=picture, capture_output=True, timeout=seconds, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return "", f"Reading text from the image takes longer than {seconds:.0f} s."
    except OSError as error:
        return "", f"tesseract could not be run ({error.strerror or type(error).__name__})."
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return "", f"tesseract could not read text from the image ({why[0][:200] if why else done.returncode})."
    return done.stdout.decode("utf-8", "replace").strip(), None
