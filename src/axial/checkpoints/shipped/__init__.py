"""The models that come with the package, by name.

Each is a folder as `axial.save` writes it, with a model card as README.md.
"""

from pathlib import Path

MODELS = Path(__file__).parent


def shipped_names() -> list[str]:
    """Of all of them."""
    return sorted(found.parent.name for found in MODELS.glob("*/model.safetensors"))


def shipped_folder(name: Path | str) -> Path | None:
    """Where a model of that name is kept; None if there is none, and for any path.

    A model or run of the user's in a folder of that name goes first, even a damaged one.
    """
    if name not in shipped_names():  # a Path never is
        return None
    own = [Path(name) / file for file in ("model.safetensors", "config.json", "run.json")]
    return None if any(file.exists() or file.is_symlink() for file in own) else MODELS / name
