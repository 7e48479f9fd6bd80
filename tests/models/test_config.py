import json
import math
import subprocess
import sys

import numpy as np
import pytest
from conftest import VARIANTS, config

from axial import AxialError, ConfigError, ModelConfig, TrainConfig
from axial.validation import as_temperature


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"axes": ()}, "axes is empty"),
        ({"decoder_layers": 4}, "decoder_layers is 4: give one whole number for each axis"),
        ({"axes": (3, 0)}, "axes is 0"),
        ({"axes": (3, 4.0)}, "axes is 4.0"),
        ({"channels": 0}, "channels is 0"),
        ({"values": 1}, "values is 1: use whole numbers of at least 2"),
        ({"values": True}, "values is True"),
        ({"values": 65537}, "values is 65537: use at most 65536"),
        ({"width": 0}, "width is 0"),
        ({"width": 8, "heads": 3}, "width 8 does not split into 3 heads: use one of [1, 2, 4, 8]"),
        ({"heads": 0}, "heads is 0"),
        ({"mlp_ratio": 0}, "mlp_ratio is 0"),
        ({"inner": "gru"}, "inner is 'gru': use one of attention, lstm"),
        ({"channel_mode": "row"}, "channel_mode is 'row': use one of encode, rows, columns"),
        ({"classes": -1}, "classes is -1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"dropout": "0.5"}, "dropout is '0.5'"),
        ({"dropout": None}, "dropout is None: use a number"),
        ({"encoder_dropout": 1.0}, "encoder_dropout is 1.0"),
        ({"encoder_dropout": "0.5"}, "encoder_dropout is '0.5'"),
        ({"plane_scale": True}, "plane_scale is True: use a number"),
        ({"plane_scale": 10**400}, "plane_scale is 1000"),
        ({"plane_scale": 0.0}, "plane_scale is 0.0"),
        ({"decoder_layers": (2,)}, "has 1 levels, but axes (3, 4) need one per axis"),
        ({"decoder_layers": (2, 2, 1)}, "has 3 levels, but axes (3, 4) need one per axis"),
        ({"decoder_layers": (1, 1)}, "decoder_layers[0] is 1, fewer than one full cycle"),
        ({"decoder_layers": (2, 0)}, "decoder_layers is 0"),
        (
            {"axes": (2, 2, 2), "decoder_layers": (3, 1, 1)},
            "decoder_layers[1] is 1, fewer than one full cycle over 2 axes: use at least 2",
        ),
        ({"encoder_layers": -1}, "encoder_layers is -1"),
        ({"encoder_layers": 1}, "encoder_layers is 1, fewer than one full cycle over 2 axes"),
        ({"channels": 3, "encoder_layers": 0}, "3 channels one after another need an encoder"),
        ({"channel_mode": "rows", "encoder_layers": 2}, "has no encoder: use 0"),
        ({"inner": "lstm", "decoder_layers": (2, 2)}, "an LSTM inner decoder is a single layer"),
        ({"given_channels": 1}, "given_channels is 1 of 1"),
        ({"channels": 4, "frames": 3}, "frames is 3, but 4 channels do not split into as many"),
        ({"frames": 0}, "frames is 0: use whole numbers of at least 1"),
        ({"given_channels": -1}, "given_channels is -1"),
        ({"given_steps": 3}, "given_steps is 3 of 3 along axis 0"),
        (
            {"channels": 2, "channel_mode": "columns", "given_channels": 1},
            "given_channels is 1, which channel_mode='columns' cannot show",
        ),
        (
            {"channels": 2, "channel_mode": "rows", "given_steps": 1},
            "given_steps is 1, which channel_mode='rows' cannot show",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_construction(settings, message):
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, AxialError)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps is 0: use whole numbers of at least 1"),
        ({"batch": 2.5}, "batch is 2.5: use whole numbers"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 64}, f"use whole numbers below {1 << 64}"),
        ({"validation": -1}, "validation is -1"),
        ({"sample_every": -1}, "sample_every is -1"),
        ({"learning_rate": 0}, "learning_rate is 0.0: use a positive number"),
        ({"learning_rate": math.inf}, "learning_rate is inf"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': use a number"),
        ({"grad_clip": 0}, "grad_clip is 0.0: use a positive number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1: use 0 or a positive number"),
        ({"beta2": 1}, "beta2 is 1.0: use a number from 0 up to below 1"),
        ({"ema": 1}, "ema is 1.0: use a number from 0 up to below 1"),
        ({"ema": -0.1}, "ema is -0.1"),
        ({"flip": 1}, "flip is 1: use True or False"),
        ({"cuda_graph": None}, "cuda_graph is None: use True or False"),
        ({"compile": "yes"}, "compile is 'yes': use True or False"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd': use one of adam, adamw, muon"),
        ({"schedule": "step"}, "schedule is 'step': use one of constant, cosine, trapezoid"),
        ({"precision": "float16"}, "precision is 'float16': use one of float32, bfloat16"),
        ({"hold_out": "first"}, "hold_out is 'first': use one of spread, last"),
        ({"embeddings": "waves"}, "embeddings is 'waves': use one of random, smooth"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_construction(settings, message):
    usual = {"steps": 10, "batch": 2, "learning_rate": 0.1}
    assert TrainConfig(**usual, precision=None, compile=None, ema=None, validation=None)
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**usual | settings)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_training_config_older_than_a_setting_means_what_it_meant():
    now = TrainConfig(steps=10, batch=2, learning_rate=0.1)
    then = {name: value for name, value in now.to_json().items() if name != "embeddings"}
    assert TrainConfig.from_json(then).embeddings == "random"


@pytest.mark.parametrize("name", VARIANTS)
def test_json_and_back_is_the_same_configuration(name):
    found = VARIANTS[name]
    assert ModelConfig.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_unknown_and_missing_settings_are_refused_by_name():
    values = config().to_json()
    with pytest.raises(ConfigError, match="'rotary' is not a setting of this version"):
        ModelConfig.from_json(values | {"rotary": True})
    del values["width"]
    with pytest.raises(ConfigError, match="width"):
        ModelConfig.from_json(values)
    for name in ("axes", "decoder_layers"):
        with pytest.raises(ConfigError):
            ModelConfig.from_json(config().to_json() | {name: 3})


def test_planes_are_divided_by_the_largest_value_unless_told_otherwise():
    assert config(values=17).plane_divisor == 16.0
    assert config(values=17, plane_scale=255.0).plane_divisor == 255.0


def test_numbers_of_other_libraries_make_the_same_configuration():
    numpy = config((np.int64(3), np.int32(4)), values=np.uint8(3), dropout=np.float64(0.5))
    plain = config((3, 4), values=3, dropout=0.5)
    assert numpy == plain and json.dumps(numpy.to_json()) == json.dumps(plain.to_json())
    whole, real = config(dropout=0, plane_scale=4), config(dropout=0.0, plane_scale=4.0)
    assert json.dumps(whole.to_json()) == json.dumps(real.to_json())


def test_given_elements_are_not_counted():
    assert config((3, 4), channels=3).elements == 36
    assert config((3, 4), channels=3, given_channels=1).elements == 24
    assert config((3, 4), channels=3, given_channels=1, given_steps=1).elements == 16


def test_configurations_and_presets_need_no_torch():
    script = (
        "import sys, axial, axial.presets, axial.models.describe, axial.cli.main; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_numbers_may_be_numpys_and_are_no_truth_values():
    assert as_temperature(np.float32(0.5)) == 0.5
    for wrong in (True, "1", None, np.ones(2)):
        with pytest.raises(ConfigError, match=r"temperature is .*: use a number"):
            as_temperature(wrong)
