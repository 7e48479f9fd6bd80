"""`axial studio`: the page."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import tyro

from axial.cli.parsing import Folder, Name, Switch, quiet
from axial.errors import ConfigError


def studio(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, quiet("MODEL ...")] = (),
    host: Annotated[str, tyro.conf.arg(metavar="NAME")] = "127.0.0.1",
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 7860,
    runs: Folder = None,
    device: Name = None,
    no_browser: Switch = False,
) -> None:
    """Serve a page to draw, complete, look inside models, compress and watch runs.

    Args:
        models: Folders of training runs or of models, or names of shipped models; default: all
            shipped models.
        host: Address to listen on; any but a loopback address demands a token, which is printed.
        port: Port to listen on; 0 takes a free one.
        runs: Folder whose training runs are shown; default: runs, if it is there.
        device: cpu, cuda or cuda:N; default: a GPU if there is one.
        no_browser: Only print the address; by default a browser is opened where there is a screen.

    Examples:
        axial studio
        axial studio runs/digits cifar10 --runs runs --port 8000
    """
    for package in ("fastapi", "uvicorn", "python_multipart"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError('the studio is an extra: pip install "axial-transformers[studio]"')
    from axial.studio.config import StudioConfig
    from axial.studio.server import serve

    if runs is None and Path("runs").is_dir():
        runs = Path("runs")
    if runs is not None and not runs.is_dir():
        raise ConfigError(f"{runs}: is no folder; name the one that holds your runs")
    config = StudioConfig(models=tuple(models), host=host, port=port, runs=runs, device=device)
    serve(config, browser=not no_browser and _has_screen())


def _has_screen() -> bool:
    """Whether someone sits before this machine."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return False
    desktop = sys.platform in ("darwin", "win32")
    return desktop or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
