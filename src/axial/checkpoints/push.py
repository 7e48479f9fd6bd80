"""A model to the Hugging Face Hub: safetensors, config.json and a model card, nothing else."""

import shutil
import tempfile
from pathlib import Path

from axial.checkpoints.hub import errors_of_hub, library
from axial.checkpoints.hub_name import parse_name
from axial.checkpoints.model_card import model_card
from axial.checkpoints.model_folder import fingerprint, load, save
from axial.checkpoints.run_folder import Run
from axial.checkpoints.shipped import shipped_folder
from axial.errors import ConfigError

_FILES = ("config.json", "model.safetensors", "README.md", "samples.png")
_MOST_CARD, _MOST_PICTURE = 1 << 20, 1 << 26


def push(
    checkpoint: Path | str, name: str, *, revision: str | None = None, private: bool = False
) -> str:
    """Upload a run or a saved model to the Hub as `name`, user/name; return its address.

    The repository is made if there is none, and `revision`, a branch, too. A README.md in the
    folder is the model card; otherwise one is made of what the run knows. The account is the one
    of `hf auth login`.
    """
    repository, other = parse_name(name)
    if other is not None:
        raise ConfigError(f"{name}: give the branch by --revision {other}")
    model = load(checkpoint)
    own = shipped_folder(checkpoint) or Path(checkpoint)
    run = Run(own) if Run.exists(own) else None
    hub = library(name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save(model, folder)
        samples = _copy(own / "samples.png", folder / "samples.png", _MOST_PICTURE)
        if not _copy(own / "README.md", folder / "README.md", _MOST_CARD):
            mark = fingerprint(model)
            card = model_card(repository, model.config, mark, run, samples=samples)
            (folder / "README.md").write_text(card)
        with errors_of_hub(name):
            api = hub.HfApi()
            api.create_repo(repository, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repository, branch=revision, exist_ok=True)
            done = api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                revision=revision,
                allow_patterns=list(_FILES),
                commit_message="A model of axial-transformers",
            )
    return str(getattr(done, "repo_url", None) or done)


def _copy(source: Path, target: Path, most: int) -> bool:
    """Take a file along if there is one, of no more bytes than `most`."""
    if not source.is_file() or source.stat().st_size > most:
        return False
    shutil.copyfile(source, target)
    return True
