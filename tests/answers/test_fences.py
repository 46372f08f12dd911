"""Which of a reply's blocks is its program: any fence, any line ends, the last that defines what is
asked for.
"""

from __future__ import annotations

import time

import pytest

from comas.answers import code, fences
from comas.tasks import mix
from comas.types import Question

ASKED = Question(
    id="q",
    prompt="?",
    kind="coding",
    answer="tests",
    meta={"tests": "assert f(2) == 4", "names": ["f"]},
)
GOOD = "def f(x):\n    return 2 * x"
OTHER = "def f(x):\n    return x"
BLOCK = f"```python\n{GOOD}\n```\n"


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        BLOCK + "Output:\n```\n4\n```\n",
        BLOCK + "```text\n4 apples\n```\n",
        BLOCK + "Usage:\n```python\nprint(f(2))\n```",
        BLOCK + "```python\n>>> f(2)\n4\n```",
        BLOCK + "```python\nfrom solution import f\nprint(f(2))\n```",
        BLOCK + "```python\nassert f(2) == 4\n```",
        BLOCK + "```bash\npython x.py\n```",
        BLOCK + "```javascript\nfunction f(x) { return x }\n```",
        BLOCK + "f(2) is ```4```.",
        "Call ```f(2)```.\n" + BLOCK,
        BLOCK.replace("\n", "\r\n"),
        BLOCK.replace("python", "python3.11"),
        BLOCK.replace("python", "{.python}"),
        BLOCK.replace("python", 'python title="x"'),
        BLOCK.replace("python", "Python"),
        BLOCK.replace("```", "~~~"),
        BLOCK.replace("```", "````"),
        BLOCK.replace("python", ""),
        "1. So:\n   " + BLOCK.replace("\n", "\n   "),
        f"Answer: ```python\n{GOOD}\n```",
        f"Use `f` so: ```python\n{GOOD}\n```",
        f"```python\n{GOOD}```",
        "```python def f(x): return 2 * x```",
        f"```python\n{OTHER}\n```\nNo:\n{BLOCK}",
        (
            f"```python\nimport math\n```\n{BLOCK}```python\nclass S:\n    def f(self, x):\n       "
            " return x\n```"
        ),
    ],
)
def test_the_program_is_found(text: str) -> None:
    assert code.extract(ASKED, text) in (GOOD, "def f(x): return 2 * x")


@pytest.mark.parametrize(
    "text",
    [
        BLOCK + f"```python\n{OTHER}\n```\n",
        BLOCK + "```python\nf = lambda x: x\n```",
        BLOCK + "```python\ndef f(x:\n```\n",
        BLOCK + f"```python\n{OTHER}",
        "I would write\n" + GOOD,
        f"```text\n{GOOD}\n```",
        f"```javascript\n{GOOD}\n```",
    ],
)
def test_the_last_definition_counts(text: str) -> None:
    assert code.extract(ASKED, text) != GOOD


BEGINS = "```python\n"
COMPLETE = {
    "no fence": GOOD,
    "an unclosed fence": BEGINS + GOOD,
    "a helper in an earlier block": f"{BEGINS}def g(x):\n    return 2 * x\n```\nso\n{BEGINS}def f(x):\n    return g(x)\n```",
    "an import in an earlier block": f"{BEGINS}import operator\n```\n{BEGINS}def f(x):\n    return operator.mul(2, x)\n```",
    "a byte order mark": f"{BEGINS}\ufeff{GOOD}\n```",
    "spaces that do not break": BEGINS + GOOD.replace("    ", "\u00a0\u00a0\u00a0\u00a0") + "\n```",
    "a fence in a docstring": f'{BEGINS}def f(x):\n    """Double.\n\n    ```python\n    f(2)\n    ```\n    """\n    return 2 * x\n```\nDone.',
}


@pytest.mark.parametrize("text", COMPLETE.values(), ids=COMPLETE)
def test_replies_that_hold_a_whole_program(text: str) -> None:
    space: dict = {}
    exec(code.extract(ASKED, text) or "", space)
    assert space["f"](2) == 4


def test_earlier_blocks_that_nothing_needs_are_left_out() -> None:
    assert code.extract(ASKED, "```python\nraise ValueError\n```\n" + BLOCK) == GOOD


def test_without_names_the_last_block_that_says_python_counts() -> None:
    nothing_known = Question(id="q", prompt="?", kind="coding")
    assert code.extract(nothing_known, BLOCK + "Output:\n```\n4\n```\n") == GOOD
    assert code.extract(nothing_known, BLOCK + f"```py\n{OTHER}\n```\n") == OTHER
    assert code.extract(nothing_known, f"```\n{GOOD}\n```") == GOOD


def test_a_question_may_show_its_calls_behind_an_unfinished_fence() -> None:
    prompt = (
        "Output\n```\nheello```\n\nTests:\n```python\nassert f(2) == 4\n```\nGive it in one block"
        " that begins with ```python."
    )
    assert code.examples(prompt) == "assert f(2) == 4"


def test_spaces_within_texts_of_a_program_stay() -> None:
    program = '    X = """a\n      \n    b"""\n    def f(x):\n        return X'
    (block,) = fences.blocks(f"```python\n{program}\n```")
    assert block.text == 'X = """a\n  \nb"""\ndef f(x):\n    return X'


def test_programs_of_one_line_are_not_compared_as_mathematics() -> None:
    assert not mix.same("f = lambda x: x - 1", "f = lambda x: 1 - x")
    assert not mix.same("def f(ab): return ab", "def f(ba): return ab")
    assert mix.same("def f(x): return x+1", "def f(x): return x + 1  # more")
    assert mix.same("0.5", r"\frac{1}{2}")


@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "```",
        "``` ",
        "```\n",
        "~~~\n",
        "```python ",
        "`x",
        " ",
        "\t\n",
        "```python\nx\n",
        "\r",
        "a```\n",
        "` ```",
    ],
)
def test_reading_is_linear(piece: str) -> None:
    began = time.process_time()
    fences.blocks(piece * 20_000 + "x")
    assert time.process_time() - began < 2


def test_a_greek_letter_is_no_program() -> None:
    assert mix.same(r"2\lambda", r"2 \lambda")
