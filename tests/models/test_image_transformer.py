"""The Image Transformer is the one of its authors: masks, positions and whole models recorded."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from axial.models.image_transformer import (
    ImageTransformer1d,
    ImageTransformer2d,
    LocalAttention,
    timing,
)
from axial.models.local_config import Local1dConfig, Local2dConfig

RECORDED = Path(__file__).parents[1] / "parity" / "rivals"
MASKS = dict(np.load(RECORDED / "image_transformer_masks.npz", allow_pickle=False))
SMALL = {"width": 4, "heads": 1, "layers": 1, "values": 2}


def mask_of(model):
    """Who sees whom, in the order of prediction: zero queries and the identity as values."""
    config = model.config
    length, query = config.length, config.query
    attention = LocalAttention(
        type(config)(**{**config.to_json(), "width": length, "heads": 1, "block": config.block})
    ).double()
    for layer, weight in (("to_queries", 0.0), ("to_values", 1.0), ("to_out", 1.0)):
        getattr(attention, layer).weight.data = weight * torch.eye(length, dtype=torch.float64)
    x = torch.eye(length, dtype=torch.float64).unsqueeze(0)
    return attention(x, model.around(x.device), query)[0].detach().numpy() > 0


@pytest.mark.parametrize(("n", "b"), [(12, 4), (10, 4), (7, 4), (8, 4), (9, 4), (64, 16), (48, 12)])
def test_the_1d_mask_is_the_authors(n, b):
    model = ImageTransformer1d(Local1dConfig(axes=(n,), block=b, **SMALL))
    wanted = MASKS[f"masked_1d_n{n}_b{b}"]
    assert np.array_equal(mask_of(model), wanted) and model.config.pairs(0) == wanted.sum()


@pytest.mark.parametrize(
    ("grid", "block", "flange"),
    [
        ((4, 6), (2, 3), (1, 2)),
        ((4, 6), (2, 3), (2, 3)),
        ((4, 12), (2, 6), (2, 6)),
        ((6, 6), (2, 2), (0, 2)),
        ((6, 6), (2, 2), (2, 0)),
    ],
)
def test_the_2d_mask_is_the_authors(grid, block, flange):
    model = ImageTransformer2d(Local2dConfig(axes=grid, block=block, flange=flange, **SMALL))
    shape = [f"{a}x{b}" for a, b in (block, flange)]
    recorded = MASKS[f"masked_2d_h{grid[0]}w{grid[1]}_q{shape[0]}_f{shape[1]}"]
    order = model.config.order()
    wanted = recorded[np.ix_(order, order)]  # they are kept in raster order
    assert np.array_equal(mask_of(model), wanted) and model.config.pairs(0) == wanted.sum()


def test_attention_is_the_authors():
    q, k, v, out = (torch.from_numpy(MASKS[f"qkv_1d_{name}"]) for name in ("q", "k", "v", "out_b4"))
    seen = mask_of(ImageTransformer1d(Local1dConfig(axes=(22,), block=4, **SMALL)))
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(seen), scale=1.0)
    torch.testing.assert_close(found, out, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("grid", "block"), [((4, 6), (2, 3)), ((4, 12), (2, 6))])
def test_both_shifts_are_the_authors(grid, block):
    """Theirs of the 2-D form, inside rectangles; and theirs of any number of axes, by the order."""
    name = f"h{grid[0]}w{grid[1]}_q{block[0]}x{block[1]}"
    for shift, kind in (("block", "2d"), ("order", "nd")):
        if (recorded := MASKS.get(f"shift_{kind}_{name}")) is None:
            continue
        config = Local2dConfig(axes=grid, block=block, flange=(1, 1), shift=shift, **SMALL)
        model = ImageTransformer2d(config)
        order = config.order()
        numbers = 1.0 + torch.arange(config.length).view(1, -1, 1)[:, order]
        moved = model.shifted(numbers)[0, :, 0]
        assert moved.tolist() == recorded.ravel()[order].tolist()
        assert [bool(value) for value in moved] == [
            model.carries(rank) for rank in range(config.length)
        ]


@pytest.mark.parametrize(("grid", "width"), [((3, 12), 16), ((4, 4), 10), ((3, 4, 2), 18)])
def test_positions_are_the_authors(grid, width):
    config = Local1dConfig(axes=grid, **SMALL | {"width": width})
    tables = timing(config, torch.float64, torch.device("cpu"))
    last = len(grid) - 1
    found = sum(table.view(-1, *(1,) * (last - i), width) for i, table in enumerate(tables))
    wanted = torch.from_numpy(MASKS[f"timing_{'x'.join(map(str, grid))}x{width}"]).double()
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)


def recorded_model(name):
    found = dict(np.load(RECORDED / f"{name}.npz", allow_pickle=False))
    about = json.loads(str(found["config"]))
    sizes = {"axes": (about["h"], about["w"]), "channels": about["c"], "width": about["d"]}
    sizes |= {"heads": about["heads"], "layers": about["layers"]}
    sizes["mlp_ratio"] = about["ff"] // about["d"]
    if about["att"] == "local_1d":
        model = ImageTransformer1d(Local1dConfig(block=about["block_length"], **sizes))
    else:
        sizes |= {"block": about["query_shape"], "flange": about["memory_flange"]}
        sizes |= {"shift": "block", "position_kind": "learned"}
        model = ImageTransformer2d(Local2dConfig(**sizes))
    weights = {key[2:]: torch.from_numpy(value) for key, value in found.items() if key[:2] == "w/"}
    own = {"embedding.weight": weights["rgb_target_emb_input_bottom"]}
    own |= {"to_logits.weight": weights["output_conv/kernel"].T}
    own |= {"to_logits.bias": weights["output_conv/bias"]}
    for axis, length in enumerate(model.config.grid if model.positions else ()):
        table = weights[f"dec_pos/dec_pos_{axis}"].reshape(-1, about["d"])
        own[f"positions.{axis}"] = table[:length]
    for layer in range(about["layers"]):
        theirs, ours = f"decoder_layer_{layer}", f"layers.{layer}"
        attention = f"{theirs}/{about['att']}_self_att/self_attention"
        names = {"to_queries": "q", "to_keys": "k", "to_values": "v", "to_out": "output_transform"}
        for to, name in names.items():
            own[f"{ours}.attention.{to}.weight"] = weights[f"{attention}/{name}/kernel"].T
        for to, name in (("mlp_in", "conv1"), ("mlp_out", "conv2")):
            own[f"{ours}.{to}.weight"] = weights[f"{theirs}/ffn/{name}/kernel"].T
            own[f"{ours}.{to}.bias"] = weights[f"{theirs}/ffn/{name}/bias"]
        for to, name in (("attention", "postprocess"), ("mlp", "postprocess_1")):
            norm = f"{theirs}/layer_{name}/layer_norm/layer_norm"
            own[f"{ours}.{to}_norm.weight"] = weights[f"{norm}_scale"]
            own[f"{ours}.{to}_norm.bias"] = weights[f"{norm}_bias"]
    return type(model).from_weights(model.config, own), found


@pytest.mark.parametrize("name", ["image_transformer_1d", "image_transformer_2d"])
def test_logits_and_who_sees_whom_are_the_authors(name):
    model, found = recorded_model(name)
    x = torch.from_numpy(found["x"].astype(np.int64))
    logits = model(x)
    torch.testing.assert_close(logits, torch.from_numpy(found["logits"]), atol=1e-5, rtol=0)
    depends = np.zeros_like(found["depends"])
    for place in range(x[0].numel()):
        changed = x[:1].clone()
        changed.view(-1)[place] = (changed.view(-1)[place] + 100) % 256
        moved = (model(changed) != logits[:1]).flatten(0, -2).any(-1)
        depends[:, place] = moved.numpy()
    assert np.array_equal(depends, found["depends"])
