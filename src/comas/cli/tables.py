"""Tables of an evaluation on the terminal, and matrices.

Leaves out: what stands in them (`cli.evaluate`).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any


def print_cross(matrix: Mapping[str, Any]) -> None:
    """What each row came to against each column, with the intervals of both margins."""
    labels = [f"{number} {name}" for number, name in enumerate(matrix["names"], 1)]
    numbers = [str(place + 1) for place in range(len(labels))]
    rows: list[list[str]] = []
    for label, cells, mean in zip(labels, matrix["matrix"], matrix["rows"], strict=True):
        figures = [f"{cell['mean']:+.3f}" for cell in cells]
        rows.append([label, *figures, _spanned(mean)])
    means = [f"{mean['mean']:+.3f}" for mean in matrix["columns"]]
    rows.append(["all", *means, _spanned(matrix["mean"])])
    title = f"cross-play on {matrix['task']}: payoff of the row, {matrix['n']} games a cell"
    names = ("row against column", *numbers, "all, 95 %")
    print_table(title, names, rows, whole=names[1:])
    progress = matrix["progress"]
    first = f"against {labels[0]}"
    print(f" the last row minus the first, {first}: {_spanned(progress['rows'])}")
    print(f" the first column minus the last, {first}: {_spanned(progress['columns'])}")
    if matrix["cycling"] is not None:
        print(f" triples that beat each other in a circle: {matrix['cycling']:.3f}")


def _spanned(found: Mapping[str, Any]) -> str:
    return span(found["mean"], found["low"], found["high"], "+")


def print_table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[str]
) -> None:
    """Within the terminal's width, elsewhere within 80 columns: names are folded where there is no
    room, columns `whole` never.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name, *texts in zip(names, *rows, strict=True):
        is_whole = name in whole
        are_numbers = is_whole and all(text[-1:].isdecimal() for text in texts)
        justify = "right" if are_numbers else "left"
        table.add_column(name, no_wrap=is_whole, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*map(Text, row))
    terminal = Console()
    width = terminal.width if terminal.is_terminal else 80
    plain = Console(file=io.StringIO(), width=max(60, width) - 1)
    with plain.capture() as drawn:
        plain.print(table)
    print(f"\n{title}")
    for line in drawn.get().splitlines():
        print(f" {line.rstrip()}")


def span(mean: float, low: float | None, high: float | None, sign: str) -> str:
    ends = ["?" if end is None else f"{end:{sign}.3f}" for end in (low, high)]
    return f"{mean:{sign}.3f} [{', '.join(ends)}]"
