"""The files of a job: its pictures as PNG, NPY and GIF, made when they are asked for."""

import io
import re
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from axial.data.packed import Array
from axial.media.moving import write_gif
from axial.media.sheets import sheet
from axial.media.tiles import shades, tiles_of
from axial.studio.errors import RequestError, not_found
from axial.studio.jobs import Job

if TYPE_CHECKING:
    from axial.models.family_config import FamilyConfig

_TYPES = {
    "png": "image/png",
    "gif": "image/gif",
    "npy": "application/octet-stream",
    "axl": "application/octet-stream",
}
_NAME = re.compile(r"(\d{1,5}|all|sheet|file)\.(png|npy|gif|axl)")


def job_file(job: Job, name: str, config: "FamilyConfig") -> tuple[bytes, str]:
    """The bytes of a file of a job that is done, and their type."""
    if (match := _NAME.fullmatch(name)) is None:
        raise not_found("a job has no such file; use I.png, I.npy, all.npy or sheet.png")
    if job.state != "done":
        raise RequestError(404, "not_found", f"the job is {job.state}: it has no files")
    stem, kind = match.groups()
    if (stem == "file") != (kind == "axl") or (stem == "sheet" and kind != "png"):
        raise not_found("a job has no such file; use I.png, I.npy, all.npy or sheet.png")
    if stem == "file":
        data = job.file
        if not data:
            raise not_found("this job compressed nothing")
        return data, _TYPES[kind]
    pictures = job.pictures
    if stem.isdecimal():
        if int(stem) >= len(pictures):
            raise not_found(f"this job has {len(pictures)} pictures, counted from 0")
        pictures = [pictures[int(stem)]]
    if not pictures or len({x.shape for x in pictures}) > 1:
        raise not_found("this job has no pictures of one size")
    single = pictures[0] if stem.isdecimal() else None
    return _encoded(kind, np.stack(pictures), single, config), _TYPES[kind]


def _encoded(kind: str, x: Array, single: Array | None, config: "FamilyConfig") -> bytes:
    out, frames = io.BytesIO(), config.data.stacked_frames
    if kind == "npy":
        np.save(out, x if single is None else single, allow_pickle=False)
    elif kind == "gif":
        if config.data.window is None or single is None:
            raise not_found("these do not move; use .png or .npy")
        tiles = shades(tiles_of(x, frames), config.values)[0]  # (rows, frames, h, w, 3)
        write_gif(out, [np.ascontiguousarray(tile) for tile in tiles.reshape(-1, *tiles.shape[2:])])
    elif single is not None and single.ndim == 3 and single.shape[-1] in (1, 3):
        pixels = np.ascontiguousarray(shades(single[None], config.values)[0])
        Image.fromarray(pixels if single.shape[-1] == 3 else pixels[..., 0]).save(out, "PNG")
    else:
        shown = sheet(x.astype(np.int64), values=config.values, frames=frames)
        shown.save(out, "PNG")
    return out.getvalue()
