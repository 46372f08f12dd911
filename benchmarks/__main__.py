"""`python -m benchmarks` lists the scripts of this folder; with a name and arguments it runs one,
as `python benchmarks/NAME.py` does: `python -m benchmarks memory --agents 1,2 --json`.

Every script that measures takes `--json`: the last line of stdout is one object.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def scripts() -> dict[str, str]:
    """Name -> the first sentence of its docstring, for each file that can be run."""
    found: dict[str, str] = {}
    for file in sorted(FOLDER.glob("[a-z]*.py")):
        source = file.read_text(encoding="utf-8")
        if "\nif __name__ ==" in source:
            about = ast.get_docstring(ast.parse(source)) or ""
            found[file.stem] = " ".join(about.partition(": `")[0].split()).partition(". ")[0]
    return found


def main() -> None:
    """List the scripts, or run one."""
    known = scripts()
    if len(sys.argv) < 2:
        width = max(map(len, known))
        for name, about in known.items():
            print(f"{name:{width}}  {about}")
        return
    name = sys.argv.pop(1)
    if name not in known:
        print(f"error: benchmark {name!r}: one of {', '.join(known)}", file=sys.stderr)
        raise SystemExit(2)
    file = FOLDER / f"{name}.py"
    sys.argv[0] = str(file)
    sys.path.insert(0, str(FOLDER))
    runpy.run_path(str(file), run_name="__main__")


if __name__ == "__main__":
    main()
