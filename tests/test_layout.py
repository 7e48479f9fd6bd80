"""What STYLE promises of the source tree: layers, names, and that shapes are checked."""

import ast
import tomllib
from pathlib import Path

import axial

SOURCE = Path(axial.__file__).parent
ROOT = Path(__file__).parent.parent

# Data flows down the page, imports point up it.
LAYERS = """errors protobuf progress recording shipped devices noise_kernels
config crc32c disk ranks tensors
cost causal noise bundle data runs line_kernels
line_attention
attention describe batches pictures sources events
layers survey packing
model folded
likelihood checkpoint tensorflow kernels fitting parallel
lines kernel_levels muon
incremental
sample evaluation trainer
completion report readings watch
sliding output
drawing
continuing
train
presets
begin
cli"""
LEVEL = {name: i for i, line in enumerate(LAYERS.split("\n")) for name in line.split()}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_modules_import_only_from_layers_above_them():
    paths = [*SOURCE.glob("[!_]*.py"), *SOURCE.glob("*/*.py")]
    module = {path: path.relative_to(SOURCE).with_suffix("").parts[0] for path in paths}
    assert set(module.values()) == LEVEL.keys()
    for path, own in module.items():
        for name in imports(path):
            if name.startswith("axial."):
                imported = name.split(".")[1]
                within = own == imported and path.parent != SOURCE
                assert within or LEVEL[imported] < LEVEL[own], f"{path} must not import {imported}"


def test_every_module_with_shapes_has_them_checked():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    checked = pyproject["tool"]["pytest"]["ini_options"]["addopts"].split("=")[1].split(",")
    annotated = {f"axial.{p.stem}" for p in SOURCE.glob("*.py") if "jaxtyping" in imports(p)}
    assert annotated == set(checked) - {"beartype.beartype"}


def test_every_public_name_is_there():
    for name in axial.__all__:
        assert getattr(axial, name).__name__ == name
    assert set(axial.__all__) == set(axial._HOME)
    assert set(axial.__all__) <= set(dir(axial))


def test_every_module_says_in_its_first_line_what_is_decided_there():
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
