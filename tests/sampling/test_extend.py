"""A clip that goes on beyond the window is what completing it window by window gives."""

from functools import partial

import pytest
import torch
from conftest import config, random_input, tiny_model

from axial import AxialError, bits, complete, prolong
from axial.models.causal import given as always_given
from axial.sampling.extend import Sliding
from axial.shape import DataShape

zeros = partial(torch.zeros, dtype=torch.long)

FORMS = {
    "stacked": config((2, 3), channels=12, given_channels=3),
    "stacked-grey": config((2, 3), channels=4, given_channels=1, frames=4),
    "stacked-columns": config((2, 3), channels=4, channel_mode="columns", frames=4),
    "grid": config((4, 2, 2), given_steps=1),
    "grid-colour": config((4, 2, 2), channels=3, given_steps=1),
    "grid-labels": config((4, 2, 2), channels=2, classes=3),
    "four-axes": config((4, 1, 2, 2), given_steps=2),
}


def as_clip(x, found):
    """(b, t, elements of a frame), whichever way the frames lie."""
    if len(found.axes) > 2:
        return x.flatten(2)
    each = 3 if found.frames is None else 1
    return x.unflatten(-1, (-1, each)).movedim(-2, 1).flatten(2)


def as_window(clip, found):
    """The same back in the form that the model takes, -1 for the frames that are missing."""
    room = torch.full((len(clip), 4 - clip.shape[1], clip.shape[2]), -1)
    clip = torch.cat([clip, room], 1)
    if len(found.axes) > 2:
        return clip.view(len(clip), *found.axes, found.channels)
    return clip.view(len(clip), 4, *found.axes, -1).movedim(1, -2).flatten(-2)


def beginning(found, count, frames):
    """The first frames of random clips (b, t, n), and what else the model is told."""
    x, label, _ = random_input(found, count)
    return as_clip(x, found)[:, :frames], {} if label is None else {"label": label}


def start_of(clip, found):
    """Some frames and no more, in the form that the model takes."""
    if len(found.axes) > 2:
        return clip.view(*clip.shape[:2], *found.axes[1:], found.channels)
    return clip.view(*clip.shape[:2], *found.axes, -1).movedim(1, -2).flatten(-2)


def by_hand(model, clip, frames, overlap, first=0, **how):
    """Window by window, on clips (b, t, n)."""
    found, number = model.config, first
    clip = as_clip(complete(model, as_window(clip, found), first=number, **how), found)
    while clip.shape[1] < frames:
        number += 2**40
        drawn = complete(model, as_window(clip[:, -overlap:], found), first=number, **how)
        clip = torch.cat([clip, as_clip(drawn, found)[:, overlap:]], 1)
    return clip[:, :frames]


@pytest.mark.parametrize("name", FORMS)
def test_sliding_is_completing_window_by_window(name):
    found = FORMS[name]
    model = tiny_model(found)
    clip, told = beginning(found, 2, 2)
    told |= {"seed": 4, "first": 1}
    start = start_of(clip, found)
    for frames, overlap in ((9, None), (6, 3), (3, 2)):
        x = as_clip(prolong(model, start, frames, overlap=overlap, **told), found)
        assert torch.equal(x, by_hand(model, clip, frames, overlap or 2, **told))
        assert x.shape[1] == frames and torch.equal(x[:, :2], clip)
    window = as_window(clip, found)
    assert torch.equal(prolong(model, window, 4, **told), complete(model, window, **told))


@pytest.mark.parametrize("name", ["stacked-grey", "grid-labels"])
def test_neither_method_nor_batch_changes_a_clip(name):
    found = FORMS[name]
    model = tiny_model(found)
    clip, told = beginning(found, 3, 2)
    start = start_of(clip, found)
    whole = prolong(model, start, 6, seed=2, **told)
    assert torch.equal(prolong(model, start, 6, seed=2, method="naive", **told), whole)
    assert torch.equal(prolong(model, start, 6, seed=2, batch=2, **told), whole)
    told = {key: value[2:] for key, value in told.items()}
    assert torch.equal(prolong(model, start[2:], 6, seed=2, first=2, **told), whole[2:])


def test_a_start_longer_than_the_window_goes_on_from_its_last_frames():
    found = FORMS["stacked-grey"]
    model = tiny_model(found)
    start = torch.randint(3, (2, 2, 3, 9), generator=torch.Generator().manual_seed(3))
    x = prolong(model, start, 11, overlap=3, seed=1)
    assert torch.equal(x[..., :9], start)
    window = torch.cat([start[..., 6:], torch.full((2, 2, 3, 1), -1)], -1)
    assert torch.equal(x[..., 9:10], complete(model, window, seed=1)[..., 3:])


def test_no_two_windows_share_their_noise():
    """A model that ignores what it is given would otherwise repeat itself."""
    found = config((2, 3), channels=4, frames=4, values=64)
    model = tiny_model(found)
    torch.nn.init.zeros_(model.to_logits.weight)
    torch.nn.init.zeros_(model.to_logits.bias)
    x = prolong(model, torch.zeros(2, 2, 3, 1, dtype=torch.long), 41, overlap=1)
    frames = as_clip(x, found)[:, 1:].flatten(0, 1)
    assert len(frames.unique(dim=0)) == 80
    assert len(set(map(tuple, frames.T.tolist()))) == 6


def test_each_new_frame_follows_the_conditional_of_its_window():
    """4,000 second windows from one start: the last frame's share of each value, enumerated."""
    found = config((1, 2), channels=3, frames=3, values=2, given_channels=1)
    model = tiny_model(found)
    start = torch.tensor([0, 1, 1, 0, 1, 1]).view(1, 1, 2, 3)
    x = prolong(model, start.expand(4000, -1, -1, -1), 4, overlap=2, seed=3)
    last = x[..., 3].flatten(1) @ torch.tensor([1, 2])
    window = start[..., 1:].expand(4, -1, -1, -1)
    new = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]]).view(4, 1, 2, 1)
    probability = (-bits(model, torch.cat([window, new], -1))).exp2()
    wanted = probability / probability.sum()
    seen = torch.bincount(last, minlength=4) / 4000
    torch.testing.assert_close(seen.double(), wanted, rtol=0, atol=0.03)


@pytest.mark.parametrize(
    ("found", "overlap", "wanted"),
    [
        (FORMS["stacked"], None, 2),
        (FORMS["four-axes"], None, 2),
        (config((6, 2, 2), given_steps=4), None, 4),
        (config((2, 2), channels=9, given_channels=4), None, 2),
        (config((3, 2, 2)), None, 1),
        (FORMS["grid"], 3, 3),
    ],
)
def test_half_of_the_window_is_kept_and_all_that_is_given(found, overlap, wanted):
    slide = Sliding(found, overlap)
    assert slide.overlap == wanted
    assert (slide.kept | ~always_given(found)).all()


@pytest.mark.parametrize("overlap", [1, 2, 3])
def test_windows_are_counted_until_there_are_enough_frames(overlap):
    slide = Sliding(FORMS["grid"], overlap)
    for begun in range(4, 9):
        for frames in range(1, 20):
            reached, count = begun, 0
            while reached < frames:
                reached, count = reached + 4 - overlap, count + 1
            assert slide.windows(begun, frames) == count


@pytest.mark.parametrize(
    ("found", "settings", "message"),
    [
        (FORMS["grid"], {"overlap": 0}, "overlap is 0: a window of 4 frames can keep 1 to 3"),
        (FORMS["four-axes"], {"overlap": 1}, "overlap is 1: a window of 4 frames can keep 2 to 3"),
        (FORMS["stacked"], {"overlap": 4}, "overlap is 4: a window of 4 frames can keep 1 to 3"),
        (FORMS["grid"], {"overlap": True}, "overlap is True: use whole numbers"),
        (FORMS["grid"], {"frames": 0}, "frames is 0"),
        (FORMS["grid"], {"noise": torch.zeros(1, 1)}, "noise= is supported for one window only"),
        (config((3, 4), channels=3), {}, "this model has no frames"),
        (config((3, 4), channels=6, given_steps=1), {}, "given a part of each"),
        (config((4, 2, 2), channels=3, given_channels=1), {}, "given a part of each"),
        (config((1, 2, 2)), {}, "sees one frame at a time"),
        (FORMS["grid"], {"start": torch.full((1, 5, 2, 2, 1), -1)}, "start holds -1 in 5 frames"),
        (FORMS["grid"], {"start": torch.full((1, 1, 2, 2, 1), -1)}, "put them into given="),
        (FORMS["grid"], {"start": zeros(1, 2, 2, 1)}, "is (batch, 1, 2, 2, 1) to this"),
        (FORMS["stacked"], {"start": zeros(1, 2, 3, 0)}, "start has shape (1, 2, 3, 0)"),
        (FORMS["stacked"], {"start": zeros(1, 2, 3, 4)}, "is (batch, 2, 3, 3) to this"),
        (FORMS["grid"], {"start": zeros(3)}, "start has shape (3,)"),
        (FORMS["stacked"], {"start": torch.zeros(1, 2, 3, 3)}, "start is torch.float32"),
        (FORMS["stacked"], {"start": torch.full((1, 2, 3, 3), 3)}, "start holds 3"),
    ],
)
def test_what_cannot_go_on_is_refused_in_one_line(found, settings, message):
    start = settings.pop("start", torch.zeros(1, *found.axes, found.channels, dtype=torch.long))
    with pytest.raises(AxialError) as caught:
        prolong(tiny_model(found), start, **({"frames": 9} | settings))
    assert message in caught.value.as_written and "\n" not in str(caught.value)


def test_candidates_that_a_further_window_cannot_weigh_are_refused_before_any_is_drawn():
    found, lines = config((3, 2, 2), channels=2, given_steps=1), []
    how = {"overlap": 2, "particles": 3, "temperature": 0.0, "finished": lines.append}
    start = torch.zeros(1, 1, 2, 2, 2, dtype=torch.long)
    with pytest.raises(AxialError, match="temperature is 0: particles"):
        prolong(tiny_model(found), start, 6, **how)
    assert not lines
    assert prolong(tiny_model(found), start, 3, **how).shape[1] == 3  # one window weighs none


def test_frames_in_the_channels_are_those_told_or_rgb():
    assert DataShape(axes=(4, 4), channels=12).stacked_frames == 4
    assert DataShape(axes=(4, 4), channels=12, frames=12).stacked_frames == 12
    assert DataShape(axes=(4, 4), channels=12, frames=1).window is None
    for axes, channels in (((4, 4), 3), ((4, 4), 20), ((4,), 6)):
        assert DataShape(axes=axes, channels=channels).window is None
    assert DataShape(axes=(5, 4, 4), channels=6).window == 5
