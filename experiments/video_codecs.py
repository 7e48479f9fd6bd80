"""What lossless codecs need for the frames of clips after the given ones, in bits/dim.

    python experiments/video_codecs.py FOLDER/test.npy ... [--given 1] [--json FILE]

Each clip is coded alone, and what is decoded is compared with it. Counted are the packets of the
frames that are not given: FFV1 and x264 have learned from the given ones by then, and put their
headers into the first packet, so that headers cost them nothing. They are tried with several
settings, and the best for the file counts. PNG and WebP code every frame as a file of its own.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext

import axial
from axial.data.classical import picture_encoders
from axial.data.packed import Array

_Sizes = Callable[[Array], list[int]]


class Codec(NamedTuple):
    """A lossless coder of clips, and with what settings."""

    name: str
    settings: str
    sizes: _Sizes
    """From a clip (t, h, w, c) to the bytes of each frame."""


def codecs(*, grey: bool) -> list[Codec]:
    """Every codec with every setting that is tried."""
    found = []
    # Version 1 has one slice a frame where version 3 has four; states live on through the clip.
    for context in ("0", "1"):
        how = {"level": "1", "coder": "1", "context": context, "g": "1000"}
        coded = partial(video_sizes, encoder="ffv1", layout="gray" if grey else "bgr0", how=how)
        found.append(Codec("FFV1", f"version 1, context {context}, one key frame", coded))
    encoder, layout = ("libx264", "gray") if grey else ("libx264rgb", "rgb24")
    for preset in ("veryslow", "placebo"):
        how = {"qp": "0", "preset": preset, "g": "1000"}
        coded = partial(video_sizes, encoder=encoder, layout=layout, how=how)
        found.append(Codec("x264", f"{encoder} qp 0, {preset}, one key frame", coded))
    for name, encode in picture_encoders().items():
        found.append(Codec(name, "each frame a file", partial(picture_sizes, encode=encode)))
    return found


def video_sizes(clip: Array, *, encoder: str, layout: str, how: dict[str, str]) -> list[int]:
    """Bytes of the packet of each frame; refused if the clip does not come back as it was."""
    grey = clip.shape[-1] == 1
    coder = av.CodecContext.create(encoder, "w")
    assert isinstance(coder, VideoCodecContext)
    coder.height, coder.width = clip.shape[1:3]
    coder.pix_fmt, coder.time_base, coder.options = layout, Fraction(1, 25), how
    packets = []
    for time, pixels in enumerate(clip):
        picture = np.ascontiguousarray(pixels[..., 0] if grey else pixels)
        frame = av.VideoFrame.from_ndarray(picture, format="gray" if grey else "rgb24")
        frame = frame.reformat(format=layout)
        frame.pts = time
        packets += coder.encode(frame)
    packets += coder.encode(None)
    if not np.array_equal(np.stack(list(_decoded(coder, packets, grey=grey))), clip):
        raise SystemExit(f"{encoder} {how}: does not give back what it was given")
    sizes = [0] * len(clip)
    for packet in packets:
        assert packet.pts is not None
        sizes[packet.pts] += packet.size
    return sizes


def _decoded(
    coder: VideoCodecContext, packets: "list[Packet[Any]]", *, grey: bool
) -> Iterator[Array]:
    """The frames (h, w, c) of a stream, in their order."""
    decoder = av.CodecContext.create("ffv1" if coder.name == "ffv1" else "h264", "r")
    assert isinstance(decoder, VideoCodecContext)
    decoder.height, decoder.width = coder.height, coder.width
    if coder.extradata:
        decoder.extradata = coder.extradata
    for packet in [*packets, None]:
        for frame in decoder.decode(packet):
            if grey:  # out of H.264 it comes as YUV, whose first plane nothing has touched
                plane = np.frombuffer(bytes(frame.planes[0]), np.uint8).reshape(frame.height, -1)
                yield plane[:, : frame.width, None]
            else:
                yield frame.to_ndarray(format="rgb24")


def picture_sizes(clip: Array, *, encode: Callable[[Array], int]) -> list[int]:
    """Bytes of each frame as a file of its own."""
    grey = clip.shape[-1] == 1
    return [encode(np.ascontiguousarray(frame[..., 0] if grey else frame)) for frame in clip]


def measure(clips: Array, *, given: int) -> dict[str, dict[str, Any]]:
    """The best setting of each codec: bits/dim of the frames after the given ones, and of all."""
    found: dict[str, dict[str, Any]] = {}
    each = math.prod(clips.shape[2:])
    for codec in codecs(grey=clips.shape[-1] == 1):
        bits = 8 * np.array([codec.sizes(clip) for clip in clips]) / each
        after = bits[:, given:].mean(1)
        row = {
            "bits_per_dim": float(after.mean()),
            "standard_error": float(after.std(ddof=1)) / math.sqrt(len(after)),
            "all_frames": float(bits.mean()),
            "settings": codec.settings,
        }
        best = found.setdefault(codec.name, row)
        if row["bits_per_dim"] < best["bits_per_dim"]:
            found[codec.name] = row
    return found


def main() -> None:
    """Print one table for each file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="packed arrays of clips")
    parser.add_argument("--given", type=int, default=1, help="frames that are known")
    parser.add_argument("--limit", type=int, help="only the first so many clips")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    for path in args.data:
        packed = axial.open_packed(path)
        count = min(len(packed), args.limit or len(packed))
        frames, height, width = packed.shape.axes
        title = packed.description.title
        print(
            f"{title}: {count} clips of {height} x {width} x {packed.shape.channels}, bits/dim of "
            f"{frames - args.given} frames given {args.given}, and of all {frames}",
            flush=True,
        )
        results[title] = measure(packed.rows(range(count)), given=args.given)
        for name, row in results[title].items():
            error = f"{row['bits_per_dim']:.4f} +- {row['standard_error']:.4f}"
            print(f"  {name:<6}{error:<20}{row['all_frames']:.4f}  {row['settings']}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
