"""What STaR, Optima and SEC have to show in the small world: `python benchmarks/labelled.py OUT
[--jobs 2] [--seeds 101,102] [--tokens 600000] [--only sec,uniform] [--report] [--json]`.

Runs, measures and tests are those of `family.py`, with systems and claims of their own; what is
there already is kept. SEC gets four fifths of the tokens of uniform draws. Thresholds were set
before any counted run; claims that fail stay in the table.

What 200,000 tokens did not show of Optima, half the tokens of a talk, is tried with five times as
many, both of its claims as they are, on the seeds 131 to 135; declared after a pilot (seed 901,
600,000 tokens: 45.7 for 98.7).
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import family
import tables
from family import Claim, Figure, System
from family_measures import START
from learning import SEEDS
from rich.console import Console

BELOW_HALF = "tokens below half"
"""Half the tokens of a talk without pay for length, minus those of a talk with it."""
TOKENS = "talk tokens"
PAIR = ("optima", "optima without length")
FEWER = 0.8
"""Tokens of SEC, those of uniform draws being 1."""


def systems(tokens: int) -> dict[str, System]:
    """Name -> its runs, of so many tokens each; teams of one model, which cost least to measure."""
    talk = "method=optima"
    fewer = f"tokens={int(FEWER * tokens)}"
    return {
        "star": System((("method=star",),), "right reasons teach"),
        "star with hints": System((("method=star", "preset=paper"),), "hints teach more"),
        "optima": System(((talk,),), "half the tokens for the same answers", "talk"),
        "optima without length": System(((talk, "options.length=0.0"),), measure="talk"),
        "sec": System((("method=sec", "agents=1", fewer),), "kinds that teach most come first"),
        "uniform": System((("method=rlvr", "task=pick_levels", "agents=1"),)),
    }


def _difference(left: str, right: str, measure: str) -> tuple[Figure, Figure]:
    return Figure(left, measure), Figure(right, measure)


def _gain(name: str) -> tuple[Figure, Figure]:
    return Figure(name, "accuracy"), Figure(name, "accuracy" + START)


CLAIMS = [
    Claim("star", "it learns", *_gain("star"), 0.0),
    Claim(
        "star with hints",
        "it ends above STaR without hints",
        *_difference("star with hints", "star", "accuracy"),
        0.0,
    ),
    Claim(
        "optima",
        "it loses no more than .03 of the talk's accuracy by the pay for length",
        *_difference("optima", "optima without length", "talk"),
        -0.03,
        -0.03,
    ),
    Claim(
        "optima",
        "its talks have at most half the tokens of those without pay for length",
        Figure("optima", BELOW_HALF),
        None,
        0.0,
    ),
    Claim(
        "sec",
        "with a fifth fewer tokens it ends no more than .02 below uniform draws",
        *_difference("sec", "uniform", "accuracy"),
        -0.02,
        -0.02,
    ),
]
"""Fixed before the runs."""


def main() -> None:
    parser = tables.parser(__doc__, SEEDS)
    parser.add_argument("--tokens", type=int, default=family.BUDGET, help="per run")
    parser.add_argument("--only", type=lambda text: text.split(","), help="systems; default: all")
    parser.add_argument("--keys", nargs="*", default=[], help="key=value of every run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    own = systems(args.tokens)
    family.SYSTEMS.update(own)
    if args.only:
        own = {name: own[name] for name in args.only}
    claims = [claim for claim in CLAIMS if claim.method in own]
    # what is measured follows from claims; the last one's figure is made of these two
    tokens_of_talks = [Claim(name, "", Figure(name, TOKENS), None, 0.0) for name in PAIR]
    own_claims = [claim for claim in claims if claim.left.measure != BELOW_HALF]
    family.CLAIMS[:] = [*own_claims, *tokens_of_talks]
    if not args.report:
        jobs = [
            (name, folder, [*command, *args.keys])
            for seed in args.seeds
            for name in own
            for folder, command in family.commands(args.out, name, seed, args.tokens)
        ]
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(family.work, jobs))
    values = family.collect(args.out, list(own), args.seeds)
    for figures in values.values():
        with_pay, without = (figures.get(Figure(name, TOKENS), math.nan) for name in PAIR)
        figures[Figure("optima", BELOW_HALF)] = without / 2 - with_pay
    verdicts = family.judge_claims(claims, values)
    rows = family.rows_of(args.out, list(own), values, verdicts)
    family.print_tables(Console(stderr=args.json, width=200), rows, verdicts)
    if args.json:
        print(family.as_json(rows, verdicts, values))


if __name__ == "__main__":
    main()
