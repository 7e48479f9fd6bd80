"""Run the cells of a notebook, keep what they show, and turn a notebook into Markdown.

    python tools/notebooks.py docs/first_steps.ipynb

runs it in an empty folder and writes its outputs into it, without Jupyter.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """A notebook, as JSON."""
    return json.loads(path.read_text())


def run(path: Path) -> list[dict[str, Any]]:
    """Run all cells from top to bottom, in the working folder; the cells with what they show."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for number, cell in enumerate(read(path)["cells"]):
        cell = dict(cell)
        if cell["cell_type"] == "code":
            cell["outputs"] = _outputs("".join(cell["source"]), f"{path.name}[{number}]", names)
            cell["execution_count"] = None
        found.append(cell)
    return found


def _outputs(source: str, where: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        lines = text.splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if (draw := getattr(value, "_repr_png_", None)) is not None:
            data["image/png"] = base64.b64encode(draw()).decode()
            data["text/plain"] = [f"<{type(value).__name__}>"]
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return outputs


def as_markdown(path: Path) -> str:
    """The notebook as a page: its text, its code, and what it showed when it was last run."""
    return "\n\n".join(_parts(read(path))) + "\n"


def _parts(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            yield source
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                picture = "".join(data["image/png"].split())
                yield f'<img alt="what the cell shows" src="data:image/png;base64,{picture}">'
            else:
                yield f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def main() -> None:
    """Run a notebook and keep its outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("notebook", type=Path)
    path = parser.parse_args().notebook.resolve()
    whole = read(path)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        whole["cells"] = run(path)
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
