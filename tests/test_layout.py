"""What STYLE promises of the source tree: rooms, their order, names, and checked shapes."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import axial

SOURCE = Path(axial.__file__).parent
ROOT = Path(__file__).parent.parent

# A room imports only from lines above its own; those of one line do not know each other.
ROOMS = """errors
validation
shape system
variants
models data
checkpoints
media
sampling evaluation
training
codec
presets
api
studio
cli"""
LINE = {name: i for i, line in enumerate(ROOMS.split("\n")) for name in line.split()}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def modules():
    return [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem[0] != "_"]


def test_every_room_has_a_row():
    assert {room_of(path) for path in modules()} == LINE.keys()


@pytest.mark.parametrize("room", LINE)
def test_a_room_imports_only_from_rooms_above_it(room):
    for path in modules():
        if room_of(path) == room:
            for name in imports(path):
                other = name.split(".")[1] if name.startswith("axial.") else room
                assert other == room or LINE[other] < LINE[room], f"{path} must not import {name}"


def test_a_room_says_in_one_line_what_it_is_for():
    for path in SOURCE.glob("*/__init__.py"):
        body = ast.parse(path.read_text()).body
        assert len(body) == 1 and len(path.read_text().splitlines()) == 1, path


def test_every_module_with_shapes_has_them_checked():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    checked = pyproject["tool"]["pytest"]["ini_options"]["addopts"].split("=")[1].split(",")
    dotted = {
        path: ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in modules()
    }
    annotated = {dotted[path] for path in modules() if "jaxtyping" in imports(path)}
    assert annotated == set(checked) - {"beartype.beartype"}


def test_every_public_name_is_there():
    for name in axial.__all__:
        assert getattr(axial, name).__name__ == name
    tree = ast.walk(ast.parse((SOURCE / "__init__.py").read_text()))
    shown = [node for node in tree if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    told = {alias.asname: node.module for node in shown for alias in node.names}
    assert told == {name: f"axial.{home}" for name, home in axial._HOME.items()}  # type checkers
    assert set(dir(axial)) == {*axial.__all__, "presets", "__version__"}


def test_presets_are_there_without_importing_them():
    script = "import axial; axial.presets.small(axial.DataShape(axes=(4, 16, 16)))"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_module_says_in_its_first_line_what_is_decided_there():
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_no_two_files_of_tests_have_one_name():
    """Pytest takes the second for the first."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py")]
    assert len(names) == len(set(names))
