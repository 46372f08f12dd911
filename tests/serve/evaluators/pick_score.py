"""Read by lm-eval and inspect_ai in their own environment, where comas is not installed: whether a
reply answers a puzzle such as `10 5 6 9 -> 24`.
"""

import re


def is_right(text: str, numbers: list[int], target: int) -> bool:
    """Whether the last line of a reply adds three of the numbers up to the target."""
    last = text.split(";")[-1].strip()
    if not re.fullmatch(r"\d+( \+ \d+ = \d+)+", last):
        return False
    operands = [int(last.split()[0]), *map(int, re.findall(r"\+ (\d+)", last))]
    distinct = len(set(operands)) == len(operands) == 3
    return distinct and set(operands) <= set(numbers) and sum(operands) == target


def process_results(doc: dict, results: list[str]) -> dict[str, float]:
    """The metric of a document, for lm-eval."""
    return {"right": float(is_right(results[0], doc["numbers"], doc["target"]))}
