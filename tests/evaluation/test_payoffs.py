"""What games of an evaluation were worth: means, counts, and nothing where there are no games."""

from __future__ import annotations

from typing import Any

import pytest

from comas.evaluation.report import payoff_note, payoff_of


def record(question: str, answer: str | None) -> dict[str, Any]:
    return {"question": question, "answer": answer}


def test_payoffs_are_clustered_by_question() -> None:
    records = [
        record("a", "won 2"),
        record("a", "lost -2"),
        record("b", "won 1"),
        record("c", "drawn 0"),
        record("d", None),
    ]
    found = payoff_of([records])
    assert found is not None
    assert found["mean"] == pytest.approx(1 / 3), "a, b and c weigh the same"
    assert found["low"] < found["mean"] < found["high"]
    assert (found["won"], found["drawn"], found["lost"]) == (2, 1, 1)
    note = payoff_note(found, "here")
    assert note.startswith("here: mean payoff +0.333 [")
    assert note.endswith("per game: 2 won, 1 drawn, 1 lost")


def test_one_game_has_no_interval() -> None:
    found = payoff_of([[record("a", "lost -1")]])
    assert found is not None
    assert (found["mean"], found["low"], found["high"]) == (-1.0, None, None)
    assert payoff_note(found, "here") == (
        "here: mean payoff -1.000 per game: 0 won, 0 drawn, 1 lost"
    )


def test_games_that_all_end_alike_tell_no_spread() -> None:
    records = [record(name, "lost -1") for name in "abc"]
    found = payoff_of([records])
    assert found is not None
    assert payoff_note(found, "here") == (
        "here: mean payoff -1.000 per game: 0 won, 0 drawn, 3 lost"
    )


def test_several_runs_are_a_level_of_their_own() -> None:
    """Runs at +1, -1 and 0 had an interval of a hundredth, over questions alone."""
    runs = [
        [record(f"q{n}", f"won {level + 0.02 * (n % 3 - 1)}") for n in range(50)]
        for level in (1.0, -1.0, 0.0)
    ]
    found = payoff_of(runs)
    assert found is not None
    assert found["mean"] == pytest.approx(0.0, abs=0.01)
    assert found["low"] < -2
    assert found["high"] > 2


@pytest.mark.parametrize("answers", [["won 1", "won 1"], ["won 1", None], ["won 1", "lost -1"]])
def test_runs_without_two_questions_or_a_spread_say_nothing(answers: list[str | None]) -> None:
    questions = "ab" if answers == ["won 1", "won 1"] else "a"
    found = payoff_of([[record(name, answer) for name in questions] for answer in answers])
    assert found is not None
    assert (found["low"], found["high"]) == (None, None)


def test_answers_to_questions_are_no_games() -> None:
    records = [record("a", "42"), record("b", "I won 3"), record("c", None)]
    assert payoff_of([records]) is None
