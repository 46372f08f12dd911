"""What became of the claims: paired differences over seeds, tested, corrected for all claims of the
file.

One-sided Student's t test of the paired differences by seed; where all of them are equal, the
chance that so many fair signs agree. Corrected after Holm (1979) over every claim: one whose runs
failed or are missing counts with p = 1, and never holds. Leaves out: where values come from
(`studies.values`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from comas.stats import Interval, holm, seeds_interval
from comas.studies.file import Claim, StudyFile
from comas.studies.values import Row

LEVEL = 0.05
Word = Literal["holds", "not shown", "contradicted", "missing", "one seed"]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    difference: Interval | None
    """Left minus right over the seeds that have both; None where none has."""
    p: float
    """Corrected."""
    raw_p: float
    word: Word
    missing: tuple[str, ...] = ()
    """Cells without a value, in words."""

    @property
    def verdict(self) -> str:
        """In words."""
        if self.word != "missing":
            return self.word
        return f"missing: {'; '.join(self.missing)}"


def verdicts_of(study: StudyFile, rows: Sequence[Row]) -> list[Verdict]:
    """A verdict for every claim, in the order of the file."""
    cells = {(row.setting, row.seed): row for row in rows}
    paired: list[list[float]] = []
    gaps: list[tuple[str, ...]] = []
    for claim in study.claims:
        values = [_difference(claim, seed, cells) for seed in study.seeds]
        paired.append([value for value in values if isinstance(value, float)])
        gaps.append(tuple(value for value in values if isinstance(value, str)))
    raw = [
        1.0 if missing else p_of(differences, claim)
        for claim, differences, missing in zip(study.claims, paired, gaps, strict=True)
    ]
    corrected = holm(raw)
    return [
        _verdict(claim, paired[i], gaps[i], corrected[i], raw[i])
        for i, claim in enumerate(study.claims)
    ]


def _difference(claim: Claim, seed: int, cells: dict[tuple[str, int], Row]) -> float | str:
    """Left minus right of a seed, or what is missing."""
    values: list[float] = []
    for setting, measure in claim.sides:
        row = cells[setting, seed]
        if measure not in row.values:
            state = "failed" if row.status == "failed" else f"no {measure}"
            return f"{setting}, seed {seed}: {state}"
        values.append(row.values[measure])
    right = values[1] if isinstance(claim.right, str) else float(claim.right)
    return float(values[0] - right)


def p_of(differences: Sequence[float], claim: Claim) -> float:
    """One-sided p that the mean difference does not lie beyond the margin on the claimed side."""
    sign = 1.0 if claim.direction == "above" else -1.0
    beyond = [sign * difference - claim.margin for difference in differences]
    if len(beyond) < 2:
        return 1.0
    if max(beyond) - min(beyond) < 1e-12:
        return 0.5 ** len(beyond) if beyond[0] > 0 else 1.0
    from scipy import stats

    found: Any = stats.ttest_1samp(beyond, 0.0, alternative="greater")
    return float(found.pvalue)


def _verdict(
    claim: Claim, differences: Sequence[float], missing: tuple[str, ...], p: float, raw: float
) -> Verdict:
    interval = seeds_interval(differences) if differences else None
    word: Word = "not shown"
    if missing:
        word = "missing"
    elif len(differences) < 2:
        word = "one seed"
    elif p < LEVEL:
        word = "holds"
    elif interval is not None and _is_opposite(claim, interval):
        word = "contradicted"
    return Verdict(claim, interval, p, raw, word, missing)


def _is_opposite(claim: Claim, interval: Interval) -> bool:
    """Whether the whole interval lies on the other side of the margin."""
    if claim.direction == "above":
        return interval.high < claim.margin
    return interval.low > -claim.margin
