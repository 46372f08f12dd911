"""Execute a notebook in a kernel of its own: `python docs/site/notebook.py NOTEBOOK [TARGET]
[--steps N]`.

What cells print and draw is written into TARGET, or into the notebook itself; a cell that fails
ends this with its traceback. Leaves out of the file: what libraries write to standard error, times,
and versions, so that a second execution changes numbers only.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

STEPS = re.compile(r"^STEPS = \d+$", re.MULTILINE)


def execute(notebook: nbformat.NotebookNode, steps: int | None) -> None:
    """Fill in the outputs; `steps` takes the place of the number that the notebook assigns."""
    sources = {cell.id: cell.source for cell in notebook.cells}
    if steps is not None:
        for cell in notebook.cells:
            cell.source = STEPS.sub(f"STEPS = {steps}", cell.source)
        if all(cell.source == sources[cell.id] for cell in notebook.cells):
            raise SystemExit("--steps: no cell of the notebook assigns STEPS")
    NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.source = sources[cell.id]
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    notebook = nbformat.read(args.notebook, as_version=4)
    execute(notebook, args.steps)
    nbformat.write(notebook, args.target or args.notebook)


if __name__ == "__main__":
    main()
