"""What the studio serves, where, and how much it takes; imports no torch."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from axial.validation import as_integer


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request, or all of them together, may ask for."""

    pictures: int = 64
    """Pictures of a request, and pictures drawn in one batch."""
    particles: int = 64
    """Particles for each continuation."""
    upload_bytes: int = 1 << 24
    """Bytes of a request."""
    upload_pixels: int = 1 << 24
    """Pixels of an uploaded picture."""
    coded_pixels: int = 1 << 20
    """Pixels that a request may have compressed or restored."""
    bodies_bytes: int = 1 << 27
    """Bytes of all requests together."""
    uploads: int = 64
    """Files of a request."""
    queue: int = 256
    """Jobs that wait for one model."""
    kept_jobs: int = 512
    """Finished jobs whose pictures can still be fetched."""
    kept_bytes: int = 1 << 27
    """What these may take of memory."""
    header_seconds: float = 10.0
    """Time in which the head of a request must arrive."""
    body_seconds: float = 30.0
    """Time in which its body must arrive, and any part of an answer be taken."""

    def to_json(self) -> dict[str, int]:
        """What a client should know."""
        told = (
            "pictures",
            "particles",
            "upload_bytes",
            "upload_pixels",
            "uploads",
            "queue",
            "coded_pixels",
        )
        return {name: value for name, value in asdict(self).items() if name in told}


@dataclass(frozen=True, kw_only=True)
class StudioConfig:
    """What is served, and where."""

    models: tuple[str, ...] = ()
    """Runs, folders of models, or names of shipped models; default: all shipped ones."""
    host: str = "127.0.0.1"
    """Address to listen on; any but a loopback address demands a token."""
    port: int = 7860
    """Port to listen on; 0 takes a free one."""
    runs: Path | None = None
    """Folder whose training runs are shown."""
    device: str | None = None
    """cpu, cuda, cuda:1 ...; default: a GPU if there is one."""
    token: str | None = None
    """What requests must carry; default: nothing on loopback, else a random one."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        as_integer("port", self.port, at_least=0, below=1 << 16)
