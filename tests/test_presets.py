import pytest
import torch

from axial import ConfigError, DataShape, ModelConfig
from axial.models.cost import forward_flops, training_flops
from axial.models.describe import describe
from axial.models.families import new_model
from axial.presets import PRESETS

ANY_DATA = [
    DataShape(axes=(7,)),
    DataShape(axes=(8, 6), values=17),
    DataShape(axes=(4, 6), channels=3, classes=10),
    DataShape(axes=(3, 4, 5), channels=2),
    DataShape(axes=(2, 3, 4, 5), values=4),
]
AXIAL = [name for name, preset in PRESETS.items() if isinstance(preset().model, ModelConfig)]


def count(config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in new_model(config).parameters())


def test_the_released_models_have_341_and_606_million_parameters():
    assert round(count(PRESETS["imagenet32-released"]().model) / 1e6) == 341
    assert round(count(PRESETS["imagenet64-released"]().model) / 1e6) == 606


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_counted_without_building_the_model(name):
    assert PRESETS[name]().model.parameters() == count(PRESETS[name]().model)


def test_the_sparse_transformers_have_the_published_sizes_and_pairs():
    """Of the paper and of what was counted beside it (docs/rivals.md)."""
    sizes = {"strided-cifar10": 59.20, "strided-cifar10-15m": 14.91, "strided-imagenet64": 151.65}
    for name, millions in sizes.items():
        assert round(PRESETS[name]().model.parameters() / 1e6, 2) == millions
    strided, local, *_ = map(PRESETS["strided-cifar10"]().model.pairs, range(4))
    assert (strided, local) == (50_688, 290_352)
    local, strided, *_ = map(PRESETS["strided-imagenet64"]().model.pairs, range(4))
    assert (strided, local) == (595_968, 1_564_736)
    assert PRESETS["full-cifar10"]().model.pairs(0) == 4_720_128
    text = describe(PRESETS["strided-cifar10-15m"]().model)
    assert "14,910,976 (14.9 M)" in text and "101.9 G to score one example" in text
    assert "32 blocks: strided, local, local, local, strided" in text and "7,373,952" in text


def test_the_image_transformers_have_the_published_sizes_and_pairs():
    found = PRESETS["local-1d-cifar10"]().model
    assert round(found.parameters() / 1e6, 1) == 38.3 and found.pairs(0) == 1_115_648
    assert round(PRESETS["local-1d-cifar10-12m"]().model.parameters() / 1e6, 1) == 12.3
    assert "12 blocks, each query sees its block and 256 places around" in describe(found)


def test_the_block_transformers_have_the_published_sizes():
    found = PRESETS["blocks-bair"]().model
    assert (found.slice_axes, len(found.slices), found.given_steps) == ((4, 32, 32), 16, 1)
    assert found.block_shapes == ((4, 8, 4), (4, 4, 8), (1, 32, 4), (1, 4, 32))
    assert (found.heads, found.head_width, found.encoder_layers, found.layers) == (8, 128, 8, 8)
    found = PRESETS["blocks-cifar10-45m"]().model
    assert round(found.parameters() / 1e6, 1) == 44.9 and found.block_shapes == ((16, 8), (8, 16))
    assert 4 * found.pairs(0, masked=False) == 131_072
    text = describe(found)
    assert "98.11 G to score one example, 73.58 G to train on one" in text and "one slice" in text
    assert "4 slices of 16 x 16 pixels in turn" in text and "1,576,960 an example" in text
    for axes in [(8,), (4, 6, 8)]:
        assert PRESETS["blocks-cifar10-45m"](DataShape(axes=axes)).model.axes == axes
    with pytest.raises(ConfigError, match=r"subscale is \(2, 2\), but axis 0 has 31 steps"):
        PRESETS["blocks-cifar10-45m"](DataShape(axes=(31, 32)))
    with pytest.raises(ConfigError, match="blocks-bair is for clips of three axes, not 2"):
        PRESETS["blocks-bair"](DataShape(axes=(64, 64), channels=48))


@pytest.mark.parametrize(
    "name", ["imagenet32", "imagenet64", "bair", "imagenet32-lstm", "imagenet64-lstm"]
)
def test_the_papers_models_have_the_papers_sizes(name):
    found = PRESETS[name]().model
    assert (found.width, found.heads, found.width // found.heads) == (2048, 16, 128)
    inner = 1 if name.endswith("lstm") else 4
    assert (found.encoder_layers, found.decoder_layers) == (8, (8, inner))
    assert found.inner == ("lstm" if name.endswith("lstm") else "attention")


def test_bair_models_fifteen_frames_given_one():
    found = PRESETS["bair"]().model
    assert (found.axes, found.channels, found.given_channels) == ((64, 64), 48, 3)
    assert found.elements == 15 * 64 * 64 * 3
    with pytest.raises(ConfigError, match="16 frames as channels, but the data has 30"):
        PRESETS["bair"](DataShape(axes=(64, 64), channels=30))
    with pytest.raises(ConfigError, match="but the data has 32 frames"):
        PRESETS["bair"](DataShape(axes=(64, 64), channels=96, frames=32))


@pytest.mark.parametrize("data", ANY_DATA, ids=str)
@pytest.mark.parametrize("name", ["small", "base", "large"])
def test_presets_for_any_data_fit_it(name, data):
    found = PRESETS[name](data).model
    assert found.axes == data.axes and found.channels == data.channels
    assert found.values == data.values and found.classes == data.classes
    assert count(found) == found.parameters()


@pytest.mark.parametrize("name", ["cifar10", "cifar10-paper", "imagenet32", "small"])
def test_one_channel_needs_no_encoder(name):
    grey, colour = (PRESETS[name](DataShape(axes=(8, 8), channels=n)).model for n in (1, 3))
    assert grey.encoder_layers == 0 < colour.encoder_layers
    assert grey.decoder_layers == colour.decoder_layers


@pytest.mark.parametrize("axes", [(7,), (3, 4, 5)], ids=str)
@pytest.mark.parametrize("name", ["cifar10", "cifar10-paper", "imagenet32"])
def test_presets_for_pictures_refuse_other_data_and_name_those_that_fit(name, axes):
    with pytest.raises(ConfigError, match=f"two axes, not {len(axes)}: small, base and large fit"):
        PRESETS[name](DataShape(axes=axes))


def test_dropout_is_the_authors():
    models = {name: PRESETS[name]().model for name in AXIAL}
    dropout = {name: (model.dropout, model.encoder_dropout) for name, model in models.items()}
    for name in ("imagenet32", "imagenet32-lstm", "imagenet32-released", "cifar10-paper"):
        assert dropout[name] == (0.04, 0.04)
    assert dropout["imagenet64-released"] == dropout["cifar10"] == (0.0, 0.0)
    assert "dropout 0.04 (0.04 in the encoder)" in describe(models["imagenet32"])


def test_a_description_tells_the_cost_of_scoring_and_of_training():
    text = describe(PRESETS["imagenet32-released"]().model)
    assert "2.105 T to score one example, 2.105 T to train on one" in text
    tiny = PRESETS["small"](DataShape(axes=(2, 2), values=2)).model
    assert f"{forward_flops(tiny) / 1e6:.4g} M to score one example" in describe(tiny)
    assert f"{training_flops(tiny) / 1e6:.4g} M to train on one" in describe(tiny)


def test_training_on_one_channel_costs_three_times_scoring_it():
    found = PRESETS["imagenet32-released"]().model
    assert training_flops(found) * found.channels == 3 * forward_flops(found)


@pytest.mark.parametrize("name", AXIAL)
def test_a_description_names_every_level_in_order(name):
    found = PRESETS[name]().model
    text = describe(found)
    assert f"{found.parameters():,}" in text
    rows = [line for line in text.splitlines() if line.startswith(" |- ")]
    assert len(rows) == len(found.axes) + bool(found.encoder_layers)
    assert "LSTM along axis 1" in rows[-1] if found.inner == "lstm" else "1* 1*" in rows[-1]
    assert "1 0* 1 0*" in text or found.decoder_layers[0] == 2


def test_one_axis_without_its_comma_is_refused():
    with pytest.raises(ConfigError, match="axes is 7: give one whole number for each axis"):
        DataShape(axes=7)


def test_a_description_of_a_volume():
    text = describe(PRESETS["small"](DataShape(axes=(4, 8, 8), channels=2, values=9)).model)
    levels = text[text.index("x (b") :].splitlines()
    assert levels[:10] == [
        "x (b, 4, 8, 8, 2)",
        " |  one channel at a time",
        " |- channel encoder           3 blocks: 2 1 0",
        " |    added to every level below",
        " |- outer decoder, axis 0     3 blocks: 2 1 0*",
        " |    shifted along axis 0, added to every level below",
        " |- outer decoder, axis 1     2 blocks: 2 1*",
        " |    shifted along axis 1, added to every level below",
        " |    the input itself, shifted along axis 2",
        " |- inner decoder, axis 2     2 blocks: 2* 2*",
    ]
