"""Video files through PyAV: decoded front to back, cut into clips, one clip in memory."""

import ctypes
import itertools
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from axial.data.sources.archives import shown, told
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import on_white, opaque, shrink
from axial.data.sources.pictures import Files, changes, find_files
from axial.data.sources.record import Record, Source, natural
from axial.errors import DataError
from axial.validation import counted

if TYPE_CHECKING:
    from av.container import InputContainer

_TICKS = 1_000_000
"""In which FFmpeg counts the duration of a file, in a second."""
_SLACK = 0.5
"""Seconds by which a whole file may end before the time it tells of."""
_TS_PACKETS = (188, 192, 204)
"""Bytes of a packet of an MPEG transport stream, which tells of no duration."""
_MOST_PIXELS = 1 << 25
"""Of a frame: 8K has 33,177,600."""
_STRICT = {"err_detect": "crccheck+bitstream+buffer+explode", "max_pixels": str(_MOST_PIXELS)}
"""What a decoder is told: by default it paints over damage, and takes frames of any size."""
_LARGEST_PIECE = 1 << 28
"""Bytes that FFmpeg may ask for at once: a small file can tell of thousand million frames."""
_CONTAINERS = {
    "mov": rb"....(ftyp|moov|mdat|free|skip|wide|pnot)",
    "matroska": rb"\x1a\x45\xdf\xa3",
    "avi": rb"RIFF....AVI",
    "flv": rb"FLV",
    "asf": rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11",
    "ogg": rb"OggS",
    "gif": rb"GIF8",
    "yuv4mpegpipe": rb"YUV4MPEG2",
    "mjpeg": rb"\xff\xd8\xff",
    "mpeg": rb"\0\0\x01\xba",
    "mpegvideo": rb"\0\0\x01\xb3",
    "m4v": rb"\0\0\x01\xb0",
    "mpegts": rb"G.{187}G|G.{203}G|.{4}G.{191}G",
}
"""What FFmpeg may take a file for, by how it begins: others are scripts that open more files."""
_NAME = re.compile(
    r".+\.(mp4|m4v|mov|avi|mkv|webm|mpe?g|wmv|flv|ts|m2ts|3gp|ogv|y4m|gif|mjpeg)", re.I | re.DOTALL
)


def is_video_name(name: str) -> bool:
    """Whether a name ends as videos do."""
    return _NAME.fullmatch(name) is not None


def open_video(path: Path, options: ReadOptions) -> Source:
    """Clips of --frames consecutive frames; what is left at the end of a video is dropped."""
    if not options.frames:
        raise DataError(f"{path}: is video; say how many frames a clip has by --frames")
    files = Files(None, path.parent, [path.name], [], [])
    if path.is_dir():
        files = find_files(path, is_video_name, options)
    names = sorted(files.names, key=lambda name: [natural(part) for part in name.split("/")])
    notes = [f"clips of {options.frames} consecutive frames", *files.notes, *changes(options)]
    return Source(
        name=path.stem if path.is_file() else path.resolve().name,
        reader="video" if path.is_file() else f"folder of {counted(len(names), 'video')}",
        split=files.split,
        values=256,
        records=_records([files.folder / name for name in names], options, notes),
        notes=notes,
        takes=frozenset({"frames", "size", "convert"}),
    )


def _records(
    files: list[Path], options: ReadOptions, notes: list[str]
) -> Iterator[Record | DataError]:
    """The clips of all files; how many frames were left over goes into the first note."""
    first, dropped = notes[0], 0
    for file in files:
        try:
            dropped += yield from _clips(file, options)
        except DataError as error:
            yield error
        if dropped:
            plural = (
                "frames at the ends of videos" if dropped > 1 else "frame at the end of a video"
            )
            notes[0] = f"{first}; {dropped:,} {plural} dropped"


def _clips(path: Path, options: ReadOptions) -> Generator[Record, None, int]:
    """Clip by clip; returns how many frames are left over."""
    length = options.frames or 1
    frames = _frames(path, options)
    for number in itertools.count():
        clip = list(itertools.islice(frames, length))
        if len(clip) < length:
            break
        yield Record(f"{path}: clip {number}", np.stack(clip)[None])
    if not number:
        raise DataError(
            f"{path}: has {len(clip)} frames, fewer than a clip of {length}; use a longer one, or "
            f"ask for fewer frames"
        )
    return len(clip)


def _frames(path: Path, options: ReadOptions) -> Iterator[Any]:
    """The frames of a video as arrays (h, w, c), all of one size."""
    number, first = 0, None
    try:
        with path.open("rb") as file, _opened(path, file) as container:
            for frame in _pictures(path, container):
                if frame.is_corrupt:
                    raise _damaged(path, number, "it is marked as corrupt")
                image = _image(frame, options, f"{path}: frame {number}")
                first = first or image.size
                if image.size != first:
                    raise DataError(
                        f"{path}: frame {number} is {image.width} x {image.height}, but the video "
                        f"began with {first[0]} x {first[1]}; cut it there"
                    )
                if options.convert == "grey":
                    image = image.convert("L")
                if options.size:
                    image = shrink(image, options.size, f"{path}: frame {number}")
                yield np.atleast_3d(np.asarray(image))
                number += 1
    except DataError:
        raise
    except Exception as error:  # a damaged video can raise anything at all
        raise _damaged(path, number, getattr(error, "strerror", "") or told(error)) from error


def _opened(path: Path, file: BinaryIO) -> "InputContainer":
    """The container, from an open file: FFmpeg would take some names for URLs and scripts."""
    head = file.read(512)
    file.seek(0)
    for name, begins in _CONTAINERS.items():
        if re.match(begins, head, re.DOTALL):
            strict = {"max_pixels": _STRICT["max_pixels"]}
            return pyav().open(file, format=name, options=strict, metadata_errors="replace")
    raise DataError(
        f"{path}: begins as none of the videos that are read ({', '.join(_CONTAINERS)}); convert "
        f"it to one of them"
    )


@contextmanager
def _noticing(path: Path, number: int) -> Iterator[None]:
    """Raise what FFmpeg does but log as an error, which it says of what is lost."""
    av = pyav()
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as messages:
            yield
    finally:
        av.logging.set_level(av.logging.PANIC)
    for level, _, text in messages:
        if level <= av.logging.ERROR:
            raise _damaged(path, number, shown(text.strip().split("\n")[0]))


def _image(frame: Any, options: ReadOptions, where: str) -> Image.Image:
    """A frame as RGB with 8 bits, turned the way its camera was held."""
    parts = frame.format.components
    if max(part.bits for part in parts) > 8 and not options.convert:
        raise DataError(
            f"{where}: has more than 8 bits a channel; --convert rgb or grey keeps the upper 8"
        )
    if any(part.is_alpha for part in parts):
        image = Image.fromarray(frame.to_ndarray(format="rgba"))
        image = on_white(image) if options.convert else opaque(image, where)
    else:
        image = frame.to_image()
    return image if frame.rotation % 90 else image.rotate(frame.rotation, expand=True)


def _damaged(path: Path, number: int, reason: object) -> DataError:
    return DataError(f"{path}: cannot be decoded at frame {number} ({reason}); fetch it again")


def _pictures(path: Path, container: "InputContainer") -> Iterator[Any]:
    """The frames of the first video stream; a file cut short is an error after the last."""
    if not container.streams.video:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
        raise DataError(f"{path}: holds no video, only {kinds}; use another file")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise DataError(f"{path}: is video of a codec that FFmpeg lacks; convert it to another")
    stream.codec_context.thread_count = 1  # others would log elsewhere, and hang after damage
    stream.codec_context.options = _STRICT
    number, reached = 0, 0.0
    packets = container.demux()  # sound too: a file may go on after its last picture
    while True:
        with _noticing(path, number):
            packet = next(packets, None)
        if packet is None:
            break
        if packet.pts is not None and packet.time_base is not None:
            reached = max(reached, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream is stream:
            with _noticing(path, number):
                frames = packet.decode()
            for frame in frames:
                yield frame
                number += 1
    _check_end(path, container, number, reached)


def _check_end(path: Path, container: "InputContainer", number: int, reached: float) -> None:
    """Refuse a file that ends before the byte, or well before the second, that it tells of."""
    stream, size = container.streams.video[0], path.stat().st_size
    with path.open("rb") as file:
        if size < (declared := _declared_size(file.read(512))):
            raise _damaged(path, number, f"it has {size:,} of {declared:,} bytes")
    if container.format.name == "mpegts" and all(size % n for n in _TS_PACKETS):
        raise _damaged(path, number, "it ends within a packet")
    if container.duration is None:
        if number < stream.frames:
            raise _damaged(path, number, f"it tells of {stream.frames}")
        return
    end = (container.duration + (container.start_time or 0)) / _TICKS
    slack = max(_SLACK, 2 / float(stream.average_rate or 1))
    if reached + slack < end:
        raise _damaged(path, number, f"it ends after {reached:.1f} of {end:.1f} seconds")


def _declared_size(head: bytes) -> int:
    """How many bytes a Matroska or AVI file says it has; 0 where none does."""
    if head.startswith(b"RIFF"):
        return (8 + int.from_bytes(head[4:8], "little")) % 0x100000000
    if not head.startswith(b"\x1a\x45\xdf\xa3"):
        return 0
    end = size = most = 0
    for _ in range(2):  # a header, then all else: each has a name of 4 bytes, its size, and data
        length = 9 - head[end + 4].bit_length()
        most = (1 << 7 * length) - 1
        size = int.from_bytes(head[end + 4 : end + 4 + length]) & most
        end += 4 + length + size
    return 0 if size == most else end  # a stream does not know


def pyav() -> Any:
    """The library that reads and writes video, which is no part of a plain installation."""
    try:
        import av
    except ImportError as error:
        raise DataError("video needs PyAV; pip install axial-transformers[video]") from error
    av.logging.set_level(av.logging.PANIC)  # what goes wrong is in our one line
    with suppress(AttributeError, OSError):  # a build that does not tell where FFmpeg is
        ctypes.CDLL(av._core.__file__).av_max_alloc(ctypes.c_size_t(_LARGEST_PIECE))
    return av
