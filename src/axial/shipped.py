"""The models that come with the package, by name.

Each is a folder as `axial.save` writes it, with a model card as README.md.
"""

from pathlib import Path

MODELS = Path(__file__).parent / "models"


def shipped_names() -> list[str]:
    """Of all of them."""
    return sorted(found.parent.name for found in MODELS.glob("*/model.safetensors"))


def shipped_folder(name: Path | str) -> Path | None:
    """Where a model of that name is kept; None if there is none, or a folder of the user's."""
    known = str(name) in shipped_names() and not Path(name).exists()
    return MODELS / name if known else None
