"""Models on the Hugging Face Hub: what is uploaded, what is fetched, what is refused."""

import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from hub_server import Hub, running, taken_for_real
from huggingface_hub import constants

import axial
from axial.checkpoints.model_folder import config_of
from axial.cli.main import main

NAME = "some-one/tiny.model"
# What the library says to itself.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with taken_for_real(tmp_path / "cache", monkeypatch) as hub:
        yield hub


def tiny(seed=0, **settings):
    torch.manual_seed(seed)
    small = dict(axes=(4, 4), channels=1, values=4, width=8, heads=2) | settings
    small = dict(encoder_layers=0, decoder_layers=(2, 1)) | small
    return axial.AxialTransformer(axial.ModelConfig(**small))


@pytest.fixture
def model(tmp_path):
    model = tiny()
    axial.save(model, tmp_path / "model")
    return model


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def refusal(name=f"hub:{NAME}"):
    with pytest.raises(axial.AxialError) as error:
        axial.load(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_pushed_is_loaded_again_weight_by_weight(hub, tmp_path, model, capsys):
    main(["push", str(tmp_path / "model"), NAME])
    assert f"{hub.url}/{NAME}: `axial sample hub:{NAME} --out" in capsys.readouterr().out
    (held,) = hub.refs[NAME].values()
    assert set(hub.commits[held]) == {"config.json", "model.safetensors", "README.md"}
    assert axial.fingerprint(axial.load(f"hub:{NAME}")) == axial.fingerprint(model)
    assert config_of(f"hub:{NAME}") == model.config
    main(["info", f"hub:{NAME}"])
    assert axial.fingerprint(model) in capsys.readouterr().out


def test_names_of_classes_are_pushed_and_fetched(hub, tmp_path):
    model = tiny(classes=2)
    model.class_names = ("cat", "dog")
    axial.save(model, tmp_path / "pets")
    axial.push(tmp_path / "pets", NAME)
    assert axial.load(f"hub:{NAME}").class_names == ("cat", "dog")
    how = ["--label", "dog", "--count", "1", "--out", str(tmp_path / "a.npy"), "--device", "cpu"]
    main(["sample", f"hub:{NAME}", *how])
    assert json.loads((tmp_path / "a.npy.json").read_text())["label"] == [1]


def test_a_card_tells_what_the_run_knows_and_not_where_it_lay(hub, tmp_path):
    x = torch.randint(4, (40, 4, 4, 1), dtype=torch.uint8)
    recipe = axial.Recipe(
        model=tiny().config, training=axial.TrainConfig(steps=2, batch=4, learning_rate=1e-3)
    )
    done = axial.train(recipe, data=x, out=tmp_path / "secret" / "run")
    axial.push(tmp_path / "secret" / "run", NAME)
    files = hub.commits[hub.refs[NAME]["main"]]
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: axial-transformers\n")
    assert f"**{done.best:.4f} bits/dim**" in card and "40 examples" in card
    assert "axial train recipe" in card and '"learning_rate": 0.001' in card
    assert "## Limits" in card and axial.fingerprint(axial.load(tmp_path / "secret/run")) in card
    assert files["samples.png"].startswith(b"\x89PNG") and "](samples.png)" in card
    assert not any(b"secret" in data for data in files.values())


def test_a_readme_of_the_folder_is_the_card(hub, tmp_path, model):
    (tmp_path / "model/README.md").write_text("# mine\n")
    (tmp_path / "model/weights.bin").write_bytes(pickle.dumps({}))
    axial.push(tmp_path / "model", NAME)
    files = hub.commits[hub.refs[NAME]["main"]]
    assert files["README.md"] == b"# mine\n" and "weights.bin" not in files


def test_a_revision_is_a_branch_or_a_commit(hub, tmp_path, model):
    axial.push(tmp_path / "model", NAME)
    other = tiny(1)
    axial.save(other, tmp_path / "other")
    axial.push(tmp_path / "other", NAME, revision="v2")
    old, new = hub.refs[NAME]["main"], hub.refs[NAME]["v2"]
    for name, wanted in {"": model, "@v2": other, f"@{old}": model, f"@{new}": other}.items():
        assert axial.fingerprint(axial.load(f"hub:{NAME}{name}")) == axial.fingerprint(wanted)
    assert "not this revision" in refusal(f"hub:{NAME}@v3")


def test_both_files_are_of_one_commit(hub, tmp_path, model):
    hub.commit(NAME, files_of(tmp_path / "model"))
    other = tiny(1, width=16)
    axial.save(other, tmp_path / "other")

    def move_on(request):  # someone pushes after the first file was fetched
        if answers(request, "model.safetensors", methods=("HEAD",)):
            hub.commit(NAME, files_of(tmp_path / "other"))

    hub.lie = move_on
    assert axial.fingerprint(axial.load(f"hub:{NAME}")) == axial.fingerprint(model)


def test_what_was_fetched_is_loaded_without_a_network(hub, tmp_path, model, monkeypatch):
    hub.commit(NAME, files_of(tmp_path / "model"))
    axial.load(f"hub:{NAME}")
    fetched = [path for way, path in hub.seen if way == "GET"]
    assert len(fetched) == 2
    axial.load(f"hub:{NAME}")
    assert [path for way, path in hub.seen if way == "GET"] == fetched  # from the cache
    closed = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", closed)
    assert axial.fingerprint(axial.load(f"hub:{NAME}")) == axial.fingerprint(model)
    assert "cannot be reached" in refusal("hub:some-one/else")


@pytest.mark.parametrize("name", ["", "name", "a/b/c", "../b", "a/..", "a--b/c", "a/b@", "a b/c"])
def test_what_is_no_name_is_refused_before_anything_is_asked(hub, name):
    assert "use user/name" in refusal(f"hub:{name}")
    assert not hub.seen


def test_models_that_are_not_there_or_not_ours_are_refused_in_one_line(hub, tmp_path, model):
    assert "no such model on the Hub" in refusal()
    bomb = pickle.dumps(print)
    hub.commit(NAME, {"pytorch_model.bin": bomb, "config.json": b'{"model_type": "bert"}'})
    assert "is no model of axial" in refusal()
    files = files_of(tmp_path / "model")
    del files["model.safetensors"]
    hub.commit("some-one/pickles", files | {"pytorch_model.bin": bomb, "model.pkl": bomb})
    assert "pickles, are never read" in refusal("hub:some-one/pickles")
    hub.commit("some-one/renamed", files | {"model.safetensors": bomb})
    assert "damaged or cut short" in refusal("hub:some-one/renamed")
    hub.commit("some-one/mixed", files_of(tmp_path / "model"))
    axial.save(tiny(1), tmp_path / "other")
    hub.commit("some-one/mixed", {"config.json": (tmp_path / "other/config.json").read_bytes()})
    assert "do not belong together" in refusal("hub:some-one/mixed")
    assert not [path for _, path in hub.seen if path.endswith((".bin", ".pkl"))]


def answers(request, *files, methods=("HEAD", "GET")):
    return request.command in methods and request.path.endswith(files)


@pytest.mark.parametrize(
    ("file", "headers", "said"),
    [
        ("model.safetensors", {"Content_Length": str(1 << 40)}, "do not trust it"),
        ("config.json", {"Content_Length": str(1 << 30)}, "do not trust it"),
        ("model.safetensors", {"Content_Length": None, "Connection": "close"}, "unknown size"),
        ("config.json", {"ETag": '"../../../outside"'}, "has no hash"),
        ("config.json", {"X_Repo_Commit": "../../outside"}, "as the commit"),
        ("config.json", {"X_Repo_Commit": None}, "as the commit"),
    ],
)
def test_what_is_too_large_or_badly_named_is_not_fetched(hub, tmp_path, model, file, headers, said):
    files = files_of(tmp_path / "model")
    commit = hub.commit(NAME, files)

    def lie(request):
        if answers(request, file):
            request.answer(
                200, b"", **({"ETag": f'"{"a" * 40}"', "X_Repo_Commit": commit} | headers)
            )
            return True
        return False

    hub.lie = lie
    before = set(tmp_path.rglob("*"))
    assert said in refusal()
    assert ("GET", f"/{NAME}/resolve/{commit}/{file}") not in hub.seen
    assert not [path for path in set(tmp_path.rglob("*")) - before if "outside" in path.name]


@pytest.mark.parametrize("place", ["http://localhost:9/x", "file:///etc/hostname", "ftp://a.b/c"])
def test_a_redirect_out_is_not_followed(hub, tmp_path, model, place):
    commit = hub.commit(NAME, files_of(tmp_path / "model"))

    def lie(request):
        if answers(request, "model.safetensors"):
            about = {"X_Linked_Size": "100", "X_Linked_Etag": f'"{"a" * 64}"'}
            request.answer(302, b"", Location=place, X_Repo_Commit=commit, **about)
            return True
        return False

    hub.lie = lie
    assert f"leads to '{place}'" in refusal()
    assert ("GET", f"/{NAME}/resolve/{commit}/model.safetensors") not in hub.seen


def test_a_download_that_is_longer_or_other_than_was_said_is_refused(hub, tmp_path, model):
    files = files_of(tmp_path / "model")
    hub.commit(NAME, files)
    wrong = bytes(len(files["model.safetensors"]))

    def longer(request):
        if answers(request, "model.safetensors", methods=("GET",)):
            request.answer(200, files["model.safetensors"] * 2)
            return True
        return False

    hub.lie = longer
    assert "longer than" in refusal()

    def other(request):
        if answers(request, "model.safetensors", methods=("GET",)):
            request.answer(200, wrong)
            return True
        return False

    hub.lie = other
    assert "is not what the Hub names by" in refusal()


def test_a_hub_that_fails_or_refuses_an_upload_is_told_in_one_line(hub, tmp_path, model):
    for status in (401, 403, 500):

        def lie(request, status=status):
            request.answer(status, {"error": "no\nreally"})
            return True

        hub.lie = lie
        refusal()
        with pytest.raises(axial.CheckpointError) as error:
            axial.push(tmp_path / "model", NAME)
        assert "\n" not in str(error.value) and str(error.value).startswith(NAME)
    assert not hub.refs


def test_the_command_follows_the_library_s_own_settings(tmp_path, model):
    with running(Hub()) as hub:
        hub.commit(NAME, files_of(tmp_path / "model"))
        env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        args = ["sample", f"hub:{NAME}", "--count", "2", "--out", "s.npy"]
        command = [sys.executable, "-W", "error", "-m", "axial", *args]
        subprocess.run(command, env=env, cwd=tmp_path, check=True)
    about = json.loads((tmp_path / "s.npy.json").read_text())
    assert about["fingerprint"] == axial.fingerprint(model)
    assert (tmp_path / "home/hub").is_dir()
