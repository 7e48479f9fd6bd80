"""Models tiny enough to enumerate, in float64, with every layer speaking at full scale."""

import importlib.util
import math
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import checked_shapes  # noqa: F401
import kernel_device  # noqa: F401
import numpy as np
import pytest
import torch
from processes import ranks
from small_runs import COMMON

from axial import AxialTransformer, ModelConfig, pack, save
from axial.cli.main import main
from axial.models.causal import given

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore Ctrl-C, and so would every process that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--share", metavar="I/N", help="every Nth test, from the Ith on")


def pytest_runtest_teardown(item):
    """Nothing may give the tests real-time priority: what they start would wait for no one else."""
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, f"{item.nodeid} changed the scheduling"


SMALL = {1: (5,), 2: (3, 4), 3: (3, 2, 3), 4: (3, 2, 2, 2)}
TINY = {1: (3,), 2: (2, 2), 3: (2, 1, 2), 4: (1, 2, 1, 2)}


def config(axes=(3, 4), **settings):
    """A small model of `axes` with one full cycle everywhere, unless told otherwise."""
    count = len(axes)
    stacked = settings.get("channel_mode", "encode") != "encode"
    several = settings.get("channels", 1) > 1 and not stacked
    defaults = dict(
        values=3,
        width=8,
        heads=2,
        encoder_layers=count if several else 0,
        decoder_layers=(*range(count, 1, -1), 1),
    )
    return ModelConfig(axes=axes, **(defaults | settings))


def variants(axes_of):
    """Every variant of the model on grids of one to four axes, by name; of four, those that differ
    by their axes."""
    found = {}
    for count, axes in axes_of.items():
        kinds = {
            "": {},
            "-deep": {"decoder_layers": (*range(count + 1, 2, -1), 2), "mlp_ratio": 2},
            "-channels": {"channels": 3},
            "-lstm": {"channels": 2, "inner": "lstm"},
            "-rows": {"channels": 2, "channel_mode": "rows"},
            "-columns": {"channels": 2, "channel_mode": "columns"},
        }
        if axes[0] > 1:
            kinds["-given-both"] = {"channels": 3, "given_channels": 1, "given_steps": 1}
        if count < 4:
            kinds |= {
                "-labels": {"channels": 2, "classes": 3},
                "-given-channels": {"channels": 3, "given_channels": 1},
                "-rows-given": {"channels": 3, "channel_mode": "rows", "given_channels": 1},
                "-rows-labels": {"channels": 2, "channel_mode": "rows", "classes": 2},
                "-columns-labels": {"channels": 2, "channel_mode": "columns", "classes": 2},
                "-given-steps": {"channels": 2, "given_steps": 1},
                "-grey-given": {"given_steps": 1},
                "-columns-given": {"channels": 2, "channel_mode": "columns", "given_steps": 1},
            }
        found |= {f"{count}d{kind}": config(axes, **settings) for kind, settings in kinds.items()}
    found["2d-stacked-clip"] = config(axes_of[2], channels=6, given_channels=3, frames=2)
    found["3d-colour-clip"] = config(axes_of[3], channels=3, given_steps=1)
    found["2d-encoder-cut-short"] = config(axes_of[2], channels=2, encoder_layers=3)
    found["2d-rows-lstm"] = config(axes_of[2], channels=2, channel_mode="rows", inner="lstm")
    found["2d-variants"] = config(axes_of[2], channels=3, augment=("colours",))
    found["2d-labels-variants"] = config(
        axes_of[2], channels=3, channel_mode="columns", classes=2, augment=("colours",)
    )
    found["2d-grey-encoder"] = config(axes_of[2], encoder_layers=2, classes=2)
    return found


VARIANTS = variants(SMALL)
ENUMERABLE = {
    name: replace(found, values=2 if found.channels > 1 else 3)
    for name, found in variants(TINY).items()
}


def normal(*shape, seed=0):
    """Normal numbers in float64: numpy's, which are the same with every version of torch."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def tiny_model(config, *, seed=0, dtype=torch.float64):
    """The model with nothing near zero: authors' scale would hide dependence in rounding.

    Its weights are drawn by numpy, so that what a test finds in it does not hang on the version of
    torch: dense layers and embeddings as the authors', norms and biases so that they matter.
    """
    model = AxialTransformer(config)
    model.reset_parameters(final_scale=1.0)
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        if ".bias_" in name:  # an LSTM's, which are not random
            continue
        mean, std = float("norm.weight" in name), 0.2
        if "embedding" in name or "positions" in name:
            std = 5 / math.sqrt(config.width)
        elif not name.endswith("bias") and "norm" not in name:
            std = 1 / math.sqrt(parameter[0].numel())
        drawn = mean + std * rng.standard_normal(tuple(parameter.shape))
        parameter.data.copy_(torch.from_numpy(drawn))
    return model.to(dtype).eval()


def saved(models, folder):
    """Tiny models by name, each in a folder of its own."""
    for name, found in models.items():
        save(tiny_model(found, dtype=torch.float32), folder / name)
    return folder


def random_input(config, batch, *, seed=1):
    """x, label and context that fit the model; the label is None if it takes none."""
    rng = np.random.default_rng(seed)
    shape = (batch, *config.axes, config.channels)
    x = torch.from_numpy(rng.integers(config.values, size=shape))
    label, labels = None, max(config.classes, 1) * config.variants
    if config.classes or labels > 1:
        label = torch.from_numpy(rng.integers(labels, size=batch))
    context = torch.from_numpy(rng.standard_normal((batch, *config.axes, config.width)))
    return x, label, context


def request_for(config, count):
    """The arguments of `draw`: the model's own given parts, -1 elsewhere, label and context."""
    x, label, context = random_input(config, count)
    x[:, ~given(config)] = -1
    return {"given": x, "label": label, "context": context}


def recite(x, seen):
    """A client of `Decoder`: answers with the values of `x`, keeps the logits of every element."""
    flat = x.flatten(1)

    def choose(line):
        def answer(j, logits):
            seen[int(line[j])] = logits
            return flat[:, line[j]]

        return answer

    return choose


def every_image(config, unknown):
    """All fillings of the elements that `unknown` marks in (*axes, c)."""
    values = torch.tensor(list(product(range(config.values), repeat=int(unknown.sum()))))
    x = torch.zeros(len(values), *config.axes, config.channels, dtype=torch.long)
    x[:, unknown] = values
    return x


def load_script(path):
    """A script of this repository, as a module that finds the scripts beside it."""
    path = Path(__file__).parent.parent / path
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def both_ranks(*args):
    """Status and words of each of two ranks of a command; torchrun would end one for the other."""
    return [(process.wait(), process.out, process.err) for process in ranks(2, *args)]


def run(*args):
    """A command, as the command line runs it."""
    main([str(arg) for arg in args])


def refused(*args):
    """The one line that a command says that must fail."""
    with pytest.raises(SystemExit) as caught:
        run(*args)
    message = str(caught.value.code)
    assert message.startswith("axial: ") and "\n" not in message
    return message


def fails(capsys, *args, status=1):
    """Run a command that must fail; return the one line it says."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    if status == 1:
        message = str(caught.value.code)
        assert message.startswith("axial: ") and "\n" not in message
        return message
    assert caught.value.code == status
    return capsys.readouterr().err


@contextmanager
def full_disk(most):
    """No file may grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def launch(tmp_path, program):
    script = tmp_path / "script.py"
    script.write_text(program)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*start, "--nproc-per-node", "2", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.hookimpl(trylast=True)  # what -m leaves out is in no share
def pytest_collection_modifyitems(config, items):
    if share := config.getoption("--share"):
        number, count = map(int, share.split("/"))
        items[:] = items[number - 1 :: count]
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of pictures of 4 x 4 in which each knows its number, as `axial data` writes them."""
    folder = tmp_path_factory.mktemp("pictures")
    for split, count in (("train", 5040), ("test", 30)):
        number = np.arange(count)
        x = np.zeros((count, 4, 4, 3), np.uint8)
        x[:, 0, 0, 0], x[:, 0, 0, 1] = number % 256, number // 256
        np.savez(folder / f"{split}.npz", x=x, y=number % 10)
        pack(folder / f"{split}.npz", folder / f"{split}.npy", workers=1)
    return folder


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """A run of sixty steps without interruption, dropout on."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    main(["train", "digits", "--out", str(folder), *COMMON])
    return folder


@pytest.fixture(scope="session")
def exact(tmp_path_factory):
    """A run of sixty steps without dropout: what any number of ranks must find."""
    folder = tmp_path_factory.mktemp("exact") / "run"
    main(["train", "digits", "--out", str(folder), "--dropout", "0", *COMMON])
    return folder


BUDGET = 1 << 24
BULKY = [
    config((8, 8), channels=40, values=2, width=4),
    config((8, 8), channels=3, values=16, width=64, heads=4, mlp_ratio=4),
]
"""Models whose memory goes into planes, and into activations."""


def takes_its_budget(run):
    """Whether a call takes about as much memory as it was allowed."""
    peak = load_script("benchmarks/attention_cost.py").peak_bytes(run, "cpu")
    return 0.2 * BUDGET < peak < 1.5 * BUDGET
