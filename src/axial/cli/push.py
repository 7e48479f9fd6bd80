"""`axial push`: share a model on the Hugging Face Hub."""

import tyro

from axial.cli.parsing import Name, Switch
from axial.system.terminal import printable


def push(
    checkpoint: tyro.conf.Positional[str],
    name: tyro.conf.Positional[str],
    revision: Name = None,
    private: Switch = False,
) -> None:
    """Share a model on the Hugging Face Hub: its weights, configuration and a model card.

    Others load it as hub:USER/NAME. The card is made of what the run knows (data, score,
    settings, limits); a README.md in the folder goes before it. Uploads as whoever `hf auth
    login` has logged in.

    Args:
        checkpoint: The folder of a training run, or one written by `axial.save`.
        name: The repository, user/name; made if there is none.
        revision: The branch to upload to, made if there is none; default: main.
        private: Make a new repository private.

    Examples:
        axial push runs/mine user/name
        axial push runs/mine user/name --revision v2 --private
    """
    from axial.checkpoints.push import push

    address = push(checkpoint, name, revision=revision, private=private)
    at = f"@{revision}" if revision else ""
    print(printable(f"{address}: `axial sample hub:{name}{at} --out samples.png` draws from it"))
