"""Clips for experiments/video.py: what is trained on, validated on and tested on.

    python experiments/video_clips.py CLIPS.npz --out DATA

`CLIPS.npz` holds `clips` (n, t, h, w, c) and perhaps `keys`, which say `task|episode|camera` of
each. `DATA` gets train.npy, validation.npy and test.npy: packed arrays that note which clips they
hold. Those of validation.npy end train.npy too, where a run holds them out.
"""

import argparse
from pathlib import Path

import numpy as np

from axial.data.batches import Indices
from axial.data.packed_writer import PackedWriter


def write_parts(source: Path, out: Path) -> None:
    """Write the clips as three packed arrays: train, validation and test."""
    with np.load(source) as file:
        clips, keys = file["clips"], file["keys"].tolist() if "keys" in file else None
    parts = split_clips(len(clips), keys)
    parts["train"] = np.concatenate([parts["train"], parts["validation"]])
    for split, index in parts.items():
        numbers = f"clips {ranges(index)} of {len(clips)}"
        with PackedWriter(out / f"{split}.npy") as writer:
            writer.append(clips[index])
            writer.finish(
                None,
                0,
                None,
                source=source.stem,
                version=None,
                split=split,
                values=256,
                skipped=0,
                notes=(numbers,),
                command=f"python experiments/video_clips.py {source} --out {out}",
            )
        print(f"{out}: {split}, {numbers}")


def split_clips(count: int, keys: list[str] | None) -> dict[str, Indices]:
    """Which clips are held out: the last ones, or by key a whole task and whole episodes.

    Several cameras see one episode and the episodes of a task share a scene. So the test is the
    last task, and validation the last episode of each other task.
    """
    test, validation = count - count // 10, count - count // 10 - count // 40
    part = np.repeat([0, 1, 2], [validation, test - validation, count - test])
    if keys is not None:
        episodes = [key.rpartition("|")[0] for key in keys]
        tasks = [episode.rpartition("|")[0] for episode in episodes]
        last = dict(zip(tasks, episodes, strict=True))  # the last of a task stays
        held_out = np.array([episode in last.values() for episode in episodes])
        part = np.where(np.array(tasks) == tasks[-1], 2, held_out)
    return {
        name: np.flatnonzero(part == number)
        for number, name in enumerate(("train", "validation", "test"))
    }


def ranges(index: Indices) -> str:
    """Numbers in words, as in 0-11, 15-35."""
    runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" for run in runs)


def main() -> None:
    """Write them, and say which clips are held out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_parts(args.clips, args.out)


if __name__ == "__main__":
    main()
