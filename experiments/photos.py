"""Which crops make the best codec of photographs: rows trained for equal time, one after another.

    python experiments/photos.py rows
    python experiments/photos.py run FOLDER --out OUT [--minutes 25 --rows crop-64 --limit 54]
    python experiments/photos.py table [RESULTS] [--out FILE.md]

`FOLDER` holds pictures in `train` and `valid`. A row is the preset `photos` with one change,
trained by `axial.train` in OUT/ROW-SEED. Then photographs of `valid`, which no row is trained on,
are compressed whole, a file each, headers counted, by the encoder of the codec. Beside them stands
what PNG, WebP and, where imagecodecs is installed, JPEG XL need for the same. `--test KODAK` does
so with the pictures of another folder too: once for each result that is reported.

`run` can be stopped and called again: what is finished stays, what was begun is resumed, and more
`--minutes` lengthen a row. RESULTS/ROW-SEED.json is what the table needs.
"""

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photo_rows import ROWS, settings_of

import axial
from axial.checkpoints.run_folder import Run
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry
from axial.data.classical import codec_bytes
from axial.data.packed import Packed, spread
from axial.evaluation.result import write_json
from axial.presets import PRESETS
from axial.shape import DataShape

RESULTS = Path(__file__).parent / "results" / "photos"
TINY_MINUTES = 0.02


def run(args: argparse.Namespace) -> None:
    """Train and measure every row that is wanted and not done; print the table after each."""
    minutes = TINY_MINUTES if args.tiny else args.minutes
    results = args.results or (args.out / "results" if args.tiny else RESULTS)
    results.mkdir(parents=True, exist_ok=True)
    sources = {"train": args.folder / "train", "valid": args.folder / "valid"}
    sources |= {"test": args.test} if args.test else {}
    data = {name: packed(folder, args.out / f"{name}.npy") for name, folder in sources.items()}
    others: dict[str, dict[str, Any]] = {}
    for name in args.rows or ROWS:
        path, folder = results / f"{name}-{args.seed}.json", args.out / f"{name}-{args.seed}"
        done = json.loads(path.read_text()) if path.exists() else None
        if done and done["minutes"] >= minutes and (done["test"] or not args.test):
            continue
        result = train_row(name, folder, data["train"].path, args, minutes)
        model = axial.load(folder, device=args.device)
        for part in data.keys() - {"train"}:
            chosen = spread(len(data[part]), min(args.limit or len(data[part]), len(data[part])))
            if part not in others:
                others[part] = classical(data[part], chosen)
            result[part] = compressed(model, data[part], chosen) | others[part]
        write_json(path, result)
        print(table_of(read_results(results)), flush=True)


def packed(folder: Path, path: Path) -> Packed:
    """The pictures of a folder in one file, which is made once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        axial.pack(folder, path, axial.ReadOptions(any_size=True))
    return axial.open_packed(path)


def train_row(
    name: str, folder: Path, data: Path, args: argparse.Namespace, minutes: float
) -> dict[str, Any]:
    """Train a row, or resume it, and say how it went."""
    settings = settings_of(name, tiny=args.tiny)
    how = {"out": folder, "max_minutes": minutes, "device": args.device}
    if Run.exists(folder):
        outcome = axial.train(resume=True, **how)
    else:
        init = ROWS[name].init
        if init and args.tiny:  # a small model instead of the one that is meant
            init = str(args.out / f"crop-32-{args.seed}")
        outcome = axial.train("photos", data=data, init=init, seed=args.seed, **how, **settings)
    if outcome.signal is not None:
        raise SystemExit(128 + outcome.signal)
    found, newest = Run(folder), Run(folder).newest()
    assert newest is not None
    model = axial.load(folder)
    return {
        "row": name,
        "seed": found.about["training"]["seed"],
        "minutes": minutes,
        "seconds": newest[0]["seconds"],
        "steps": outcome.step,
        "batch": settings["batch"],
        "parameters": model.config.parameters(),
        "crop": model.config.axes[0],
        "crops_a_pass": found.about["data"]["crops"]["trained"],
        "held_out": outcome.best,
        "training": found.about["training"],
        "fingerprint": axial.fingerprint(model),
        "test": None,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
    }


def compressed(model: Any, pictures: Packed, chosen: Any) -> dict[str, Any]:
    """Bytes of whole pictures, a file each, and the seconds of writing them."""
    codec, sizes, start = Codec(model), [], time.perf_counter()
    elements = 0
    for i in chosen.tolist():
        x, file = pictures.example(i), io.BytesIO()
        entry = Entry(name=f"{i}", grid=x.shape[:-1], one_plane=x.shape[-1] < codec.config.channels)
        codec.write(file, codec.contents(), [(entry, [Example(x)])])
        sizes.append(len(file.getvalue()))
        elements += x.size
    return {
        "title": pictures.description.title,
        "bits_per_dim": 8 * sum(sizes) / elements,
        "bytes": sizes,
        "elements": elements,
        "seconds": time.perf_counter() - start,
    }


def classical(pictures: Packed, chosen: Any) -> dict[str, Any]:
    """What other codecs need for the same pictures, in bits/dim."""
    x = [np.squeeze(pictures.example(i)) for i in chosen.tolist()]
    elements = sum(one.size for one in x)
    return {"codecs": {name: 8 * n / elements for name, n in codec_bytes(x).items()}}


def read_results(folder: Path) -> list[dict[str, Any]]:
    """What the rows found, in their order."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda one: (list(ROWS).index(one["row"]), one["seed"]))


def table_of(results: list[dict[str, Any]]) -> str:
    """What the rows found, as a table in Markdown."""
    if not results:
        raise SystemExit("no results; `python experiments/photos.py run` makes some")
    head = [
        "row",
        "",
        "seed",
        "parameters",
        "minutes",
        "steps",
        "passes",
        "tiles held out, bits/dim",
    ]
    head += ["whole photographs, bits/dim", "test, bits/dim"]
    rows = [head, ["---"] * len(head)]
    for one in results:
        test = f"{one['test']['bits_per_dim']:.4f}" if one["test"] else ""
        passes = one["steps"] * one["batch"] / one["crops_a_pass"]
        facts = [f"{one['parameters'] / 1e6:.1f}M", f"{one['seconds'] / 60:.1f}"]
        facts += [f"{one['steps']:,}", f"{passes:.2f}"]
        held_out = "" if one["held_out"] is None else f"{one['held_out']:.4f}"
        bits = [held_out, f"{one['valid']['bits_per_dim']:.4f}", test]
        rows.append([one["row"], ROWS[one["row"]].about, f"{one['seed']}", *facts, *bits])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    for part in ("valid", "test"):
        for found in [one[part] for one in results if one[part]][:1]:
            texts = ", ".join(f"{name} {bits:.4f}" for name, bits in found["codecs"].items())
            count = len(found["bytes"])
            lines += ["", f"{found['title']}, {count} pictures: {texts} bits/dim, a file each."]
    return "\n".join(lines)


def show_rows(args: argparse.Namespace) -> None:
    """Print every row."""
    for name, row in ROWS.items():
        shape = DataShape(axes=(row.crop, row.crop), channels=3)
        size = 2 * PRESETS["photos"](shape).model.parameters() / 1e6
        print(f"{name:<14} {row.batch:>3} crops a step, {size:.1f} MB in bf16: {row.about}")


def table(args: argparse.Namespace) -> None:
    """Print what the rows found."""
    text = table_of(read_results(args.results))
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("rows", help="print every row")
    step.set_defaults(do=show_rows)
    step = steps.add_parser("run", help="train and measure rows")
    step.add_argument("folder", type=Path, metavar="FOLDER", help="holds train and valid")
    step.add_argument("--out", type=Path, required=True, help="folder for data and runs")
    step.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help="default: all")
    step.add_argument("--minutes", type=float, default=25.0, help="of training, for each row")
    step.add_argument("--limit", type=int, help="photographs to compress; default: all")
    step.add_argument("--test", type=Path, metavar="KODAK", help="compress these pictures too")
    step.add_argument("--seed", type=int, default=0)
    step.add_argument("--device", help="cpu or cuda; default: a GPU where there is one")
    step.add_argument("--results", type=Path, help="default: experiments/results/photos")
    step.add_argument("--tiny", action="store_true", help="tiny models for a second, to try it")
    step.set_defaults(do=run)
    step = steps.add_parser("table", help="print what rows found")
    step.add_argument("results", type=Path, nargs="?", default=RESULTS)
    step.add_argument("--out", type=Path, metavar="FILE.md")
    step.set_defaults(do=table)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
