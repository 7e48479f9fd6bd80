import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tensor_bundle import write_bundle

from axial import bits_per_dim, draw, from_tensorflow, load_tensorflow
from axial.checkpoints.tensor_bundle import find_bundle, read_index, read_tensor
from axial.errors import AxialError, CheckpointError, ConfigError

PARITY = Path(__file__).parents[1] / "parity"
FIXTURES = sorted(path.stem for path in PARITY.glob("*.npz"))
CHECKPOINT = PARITY / "tf_checkpoint"


class Recorded:
    """One recording of the authors' code: weights, input, and what came out."""

    def __init__(self, name):
        with np.load(PARITY / f"{name}.npz") as file:
            arrays = dict(file)
        self.config = json.loads(str(arrays["config"]))
        self.variables = {n[4:]: v for n, v in arrays.items() if n.startswith("var/")}
        self.channels = self.config["img_channels"] if name.startswith("mc2d") else None
        grey = arrays["x"].ndim == 3  # one model of theirs has no channel axis

        def tensor(key, *, features):
            found = torch.from_numpy(arrays[key])
            return found.unsqueeze(-1 - features) if grey else found

        self.x = tensor("x", features=0)
        self.logits = tensor("logits", features=1)
        self.noise = tensor("noise", features=1)
        self.samples = tensor("samples", features=0).long()
        self.bits_per_dim = torch.from_numpy(arrays["bits_per_dim"]).double()
        self.context = torch.from_numpy(arrays["cond"]) if "cond" in arrays else None

    def model(self, variables=None):
        return from_tensorflow(
            variables or self.variables, heads=self.config["num_heads"], channels=self.channels
        )


@pytest.fixture(params=FIXTURES)
def recorded(request):
    return Recorded(request.param)


def test_all_five_recordings_are_here():
    assert len(FIXTURES) == 5


def test_logits_and_bits_are_the_authors(recorded):
    model = recorded.model()
    with torch.no_grad():
        logits = model(recorded.x, context=recorded.context)
    torch.testing.assert_close(logits, recorded.logits, rtol=0, atol=5e-5)
    score = bits_per_dim(model, recorded.x, context=recorded.context)
    torch.testing.assert_close(score, recorded.bits_per_dim, rtol=0, atol=1e-5)


def test_samples_are_the_authors_for_the_same_noise(recorded):
    """By the cached method; tests/sampling compares the others with it."""
    how = {"noise": recorded.noise, "context": recorded.context}
    assert torch.equal(draw(recorded.model(), len(recorded.samples), **how), recorded.samples)


def test_every_size_is_read_off_the_shapes(recorded):
    found, theirs = recorded.model().config, recorded.config
    assert found.axes == (theirs["img_height"], theirs["img_width"])
    assert found.channels == theirs.get("img_channels", 1)
    assert found.values == theirs["num_embs"]
    assert found.width == theirs["emb_dim"]
    assert found.mlp_ratio == theirs["hdim_factor"]
    assert found.encoder_layers == theirs.get("num_exterior_layers", 0)
    assert found.decoder_layers == (theirs["num_outer_layers"], theirs["num_inner_layers"])
    assert found.plane_scale == 255.0


def test_names_may_stand_below_any_root_or_none(recorded):
    bare = {name.removeprefix("model/"): v for name, v in recorded.variables.items()}
    for root in ("", "ar_decoder/", "tower_0/ar_decoder/"):
        model = recorded.model({root + name: value for name, value in bare.items()})
        with torch.no_grad():
            logits = model(recorded.x, context=recorded.context)
        torch.testing.assert_close(logits, recorded.logits, rtol=0, atol=5e-5)


@pytest.mark.parametrize("ema", [True, False])
def test_the_recorded_checkpoint_raw_and_averaged(ema):
    model = load_tensorflow(CHECKPOINT, heads=4, ema=ema)
    kind = "ema" if ema else "raw"
    with np.load(CHECKPOINT / "expected.npz") as expected:
        x = torch.from_numpy(expected["x"])
        logits = torch.from_numpy(expected[f"logits_{kind}"])
        score = torch.from_numpy(expected[f"bits_per_dim_{kind}"]).double()
        noise = torch.from_numpy(expected["noise"])
        samples = torch.from_numpy(expected["samples_ema"]).long()
    with torch.no_grad():
        torch.testing.assert_close(model(x), logits, rtol=0, atol=5e-5)
    torch.testing.assert_close(bits_per_dim(model, x), score, rtol=0, atol=1e-5)
    if ema:
        assert torch.equal(draw(model, 2, noise=noise), samples)


def test_a_model_without_channels_on_its_shapes_asks_for_them():
    recorded = Recorded("mc2d_h4w5c3_k16")
    with pytest.raises(ConfigError, match="give channels="):
        from_tensorflow(recorded.variables, heads=4)
    with pytest.raises(ConfigError, match="12 stacked rows do not split into 5 channels"):
        from_tensorflow(recorded.variables, heads=4, channels=5)
    for wrong in (0, "3"):
        with pytest.raises(ConfigError, match=r"channels is '?\w'?: use whole numbers"):
            from_tensorflow(recorded.variables, heads=4, channels=wrong)
    encoded = Recorded("t3d_h6w5c3_k256")
    with pytest.raises(ConfigError, match="this model has 3 channels, not 4"):
        from_tensorflow(encoded.variables, heads=4, channels=4)


@pytest.mark.parametrize("kind", ["complex64", "<U8"])
def test_variables_that_are_no_real_numbers_are_refused(kind):
    recorded = Recorded("t3d_h6w5c3_k256")
    name = next(name for name in recorded.variables if name.endswith("embs"))
    wrong = recorded.variables[name].astype(kind)
    with pytest.raises(CheckpointError, match=f"is {kind}: give real numbers"):
        from_tensorflow(recorded.variables | {name: wrong}, heads=4)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="width 32 does not split into 5 heads"):
        load_tensorflow(CHECKPOINT, heads=5)


@pytest.fixture(scope="module")
def variables():
    """Everything in the recorded checkpoint, optimizer and averages included."""
    prefix = find_bundle(CHECKPOINT)
    entries = read_index(prefix.with_name(prefix.name + ".index"))
    return {name: read_tensor(prefix, name, entry) for name, entry in entries.items()}


AVERAGE = "/ExponentialMovingAverage"
DENSE = "ar_decoder/transformer2d/inner_row_1/mlp/proj_in/w"


def test_a_dictionary_with_the_optimizer_in_it_gives_the_raw_weights(variables):
    ours = from_tensorflow(variables, heads=4).state_dict()
    theirs = load_tensorflow(CHECKPOINT, heads=4, ema=False).state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_any_single_missing_variable_is_named(variables):
    chosen = {n.removesuffix(AVERAGE): v for n, v in variables.items() if n.endswith(AVERAGE)}
    assert len(chosen) > 100
    for name in chosen:
        rest = {n: v for n, v in chosen.items() if n != name}
        what = "embs" if name.endswith("/embs") else name
        with pytest.raises(CheckpointError, match=what):
            from_tensorflow(rest, heads=4)


def write(folder, variables):
    folder.mkdir(exist_ok=True)
    write_bundle(folder / "model.ckpt", variables)
    return folder


def test_a_missing_variable_in_a_folder_is_named(tmp_path, variables):
    model = {n: v for n, v in variables.items() if "Adam" not in n and n != DENSE + AVERAGE}
    folder = write(tmp_path, model)
    with pytest.raises(
        CheckpointError, match=rf"\(averaged weights\): variable {DENSE} is missing"
    ):
        load_tensorflow(folder, heads=4)
    load_tensorflow(folder, heads=4, ema=False)  # the other kind of weights is still whole


def test_a_misshapen_variable_is_named(variables):
    for harm, shape in (
        (variables[DENSE].T, r"\(64, 32\) instead of \(32, 64\)"),
        (variables[DENSE].ravel(), r"\(2048,\), not 2-D"),
    ):
        with pytest.raises(CheckpointError, match=f"variable {DENSE} has shape {shape}"):
            from_tensorflow(variables | {DENSE: harm}, heads=4)


def test_a_bit_flipped_variable_is_named_and_others_do_not_matter(tmp_path):
    folder = Path(shutil.copytree(CHECKPOINT, tmp_path / "copy"))
    prefix = find_bundle(folder)
    entry = read_index(prefix.with_name(prefix.name + ".index"))[DENSE]
    path = folder / "model.ckpt.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[entry.offset + 100] ^= 16
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"the checksum of variable {DENSE} is wrong"):
        load_tensorflow(folder, heads=4, ema=False)
    load_tensorflow(folder, heads=4, ema=True)


def test_a_folder_without_averages_says_so(tmp_path, variables):
    raw = {n: v for n, v in variables.items() if not n.endswith(AVERAGE) and "Adam" not in n}
    with pytest.raises(CheckpointError, match="no averaged weights; import the raw ones"):
        load_tensorflow(write(tmp_path, raw), heads=4)
    load_tensorflow(tmp_path, heads=4, ema=False)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e300])
def test_numbers_that_are_not_finite_are_refused(variables, wrong):
    damaged = variables[DENSE].astype(np.float64)
    damaged[3, 5] = wrong
    with pytest.raises(
        CheckpointError, match=f"variable {DENSE} holds numbers that are not finite"
    ):
        from_tensorflow(variables | {DENSE: damaged}, heads=4)


def test_a_model_with_more_to_it_than_we_know_is_refused(variables):
    more = variables | {"ar_decoder/transformer2d/lstm/kernel": np.zeros((32, 128), np.float32)}
    with pytest.raises(CheckpointError, match="ar_decoder/transformer2d/lstm/kernel is none of"):
        from_tensorflow(more, heads=4)
    with pytest.raises(AxialError, match="expected one variable 'embs', found 0"):
        from_tensorflow({"a/b": np.zeros(3, np.float32)}, heads=4)
