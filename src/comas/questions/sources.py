"""Questions from files and from the hub: one loader for both, since local files have the hub's
columns.

A task names its data set, its file and its columns; `path=` or the folder in the environment
variable COMAS_DATA come before the hub. Parts of a file are cut by a hash of each question's text,
so that they never overlap whatever is added; generated questions are divided by their numbers.
Leaves out: what the columns mean (tasks).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.types import Question, UserMistake

Record = Mapping[str, Any]
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class DataSource:
    """Where the rows of a task come from."""

    task: str
    hub: str | None
    """Name of the data set on the hub; None: files only."""
    columns: tuple[str, ...]
    """Columns that must be there, and be text."""
    values: tuple[str, ...] = ()
    """Columns that must be there, as text or as a number."""
    config: str | None = None
    """Config of the hub's data set."""
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})
    """Our split -> the hub's; a task may cut one into several."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Our split -> the file's name, where it is not `<task>_<split>.jsonl`, of splits that are cut
    from one `<task>_<hub split>.jsonl`.
    """
    shares: Mapping[str, float] = field(default_factory=dict)
    """Our split -> its share: these are cut from one file by a hash of the questions' texts, in
    this order.
    """

    def loader(self, make: Callable[[Record, str], Question]) -> Callable[..., list[Question]]:
        """The `Task.load` of these rows, each made into a question by `make(row, place)`."""

        def load(
            split: str, path: str | None = None, limit: int | None = None, seed: int = 0
        ) -> list[Question]:
            """The questions of a split in an order drawn by `seed`, at most `limit`; `path`: a
            file, or a folder with the files.
            """
            return self.questions(make, split, path, limit, seed)

        return load

    def questions(
        self,
        make: Callable[[Record, str], Question],
        split: str,
        path: str | None,
        limit: int | None,
        seed: int,
        keep: Callable[[Question], bool] | None = None,
        same: Callable[[str, str, str], bool] | None = None,
    ) -> list[Question]:
        """Build the questions of a split with `make(row, place)`, each text once; those that `keep`
        takes, by default those that fall into the split where it has a share.

        `same(kind, a, b)` says whether two references of a text are one; by default those of the
        same writing are. The order is drawn by `seed`; at most `limit` are returned, and a smaller
        limit gives the first ones of a larger.
        """
        by_id: dict[str, Question] = {}
        for row, where in self.rows(split, path):
            question = make(row, where)
            earlier = by_id.get(question.id, question).answer or question.answer
            # other tests of one program contradict nothing
            one_answer = self.hub is None and question.kind != "coding"
            differ = question.answer != earlier and not (
                same
                and question.answer
                and earlier
                and same(question.kind, earlier, question.answer)
            )
            if one_answer and question.answer and differ:
                raise UserMistake(
                    f"{where}: task {self.task} has read this question with another answer,"
                    f" {str(earlier)[:60]!r}, and here it is {question.answer[:60]!r}: leave one"
                    f" out ({question.prompt[:60]!r})"
                )
            if question.id not in by_id or question.answer is not None:
                by_id[question.id] = question

        def in_split(question: Question) -> bool:
            """Whether a text falls into the split, which the whole file is without a share."""
            shares = self.shares
            return split not in shares or split_of_text(self.task, question.prompt, shares) == split

        chosen = [question for question in by_id.values() if (keep or in_split)(question)]
        if by_id and not chosen:
            source = path or os.environ.get("COMAS_DATA") or self.hub
            raise UserMistake(
                f"task {self.task}: none of the {len(by_id)} questions of {source} falls into its"
                f" {split} cut, which a hash of each question's text makes: take more questions, or"
                " a folder with a file per split where the task reads one"
            )
        random.Random(f"{self.task} {split} {seed}").shuffle(chosen)
        return chosen[:limit]

    def rows(self, split: str, path: str | None) -> Iterator[tuple[Record, str]]:
        """Rows of a split, each with where it stands. Raises UserMistake."""
        if split not in self.splits:
            splits = ", ".join(self.splits)
            reason = "; it is for evaluation only" if set(self.splits) == {"test"} else ""
            raise UserMistake(f"task {self.task} has no split {split!r}: one of {splits}{reason}")
        source = path or os.environ.get("COMAS_DATA")
        if source and not path and not Path(source).exists():
            raise UserMistake(
                f"COMAS_DATA is {source}: there is no such folder; correct the variable, or unset"
                " it to read the hub"
            )
        file = Path(source) if source else None
        if file is not None and file.is_dir():
            file /= self._file_name(split)
        if file is None or (path is None and self.hub and not file.exists()):
            yield from self._checked(self._hub_rows(split), f"{self.hub} row ")
        else:
            yield from self._checked(_lines(file, self.task), f"{file}:")

    def _file_name(self, split: str) -> str:
        part = self.splits[split] if split in self.shares else split
        return self.files.get(split, f"{self.task}_{part}.jsonl")

    def _checked(self, rows: Iterable[tuple[int, Any]], where: str) -> Iterator[tuple[Record, str]]:
        kinds: dict[str, Any] = dict.fromkeys(self.columns, str)
        kinds |= dict.fromkeys(self.values, str | int | float)
        for number, row in rows:
            row_name = f"{where}{number}"
            if not isinstance(row, Mapping) or not all(
                isinstance(row.get(column), kind) for column, kind in kinds.items()
            ):
                names = ", ".join(f"`{column}`" for column in kinds)
                remedy = WANTED
                if isinstance(row, Mapping):
                    columns = ", ".join(map(str, row))[:80] or "none"
                    remedy = f"its columns are {columns}: rename what is meant"
                raise UserMistake(
                    f"{row_name}: expected an object with the texts {names}, got {str(row)[:60]};"
                    f" {remedy}"
                )
            if any(_SURROGATE.search(str(row[column])) for column in kinds):
                raise UserMistake(
                    f"{row_name}: half a character (a lone surrogate) stands in one of its texts"
                )
            yield row, row_name

    def _hub_rows(self, split: str) -> Iterator[tuple[int, Any]]:
        local = (
            f"set COMAS_DATA to a folder with {self._file_name(split)}, or data (in"
            " eval: --data) to the file"
        )
        if self.hub is None:
            raise UserMistake(f"task {self.task} reads a file: {local}")
        try:
            import datasets
        except ImportError as error:
            raise UserMistake(
                f"task {self.task} reads the hub with `datasets`, which is not installed: pip"
                f' install "comas[hub]", or {local}'
            ) from error
        names = [self.hub, self.config] if self.config else [self.hub]
        try:
            rows: Any = datasets.load_dataset(*names, split=self.splits[split])
        except (OSError, ValueError, RuntimeError) as error:
            kind = type(error).__name__
            raise UserMistake(
                f"task {self.task} cannot get {self.hub} from the hub ({kind}): go online, or"
                f" {local}"
            ) from error
        yield from enumerate(rows)


WANTED = "JSON lines in UTF-8 are wanted, one object per line"


def _lines(file: Path, task: str) -> Iterator[tuple[int, Any]]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserMistake(f"task {task} cannot read {file} ({error}): {WANTED}") from error
    except OSError as error:
        raise UserMistake(
            f"task {task} cannot read {file} ({error.strerror}): set data=FILE or COMAS_DATA, or"
            " unset both (for `resume`, put the file back there: a run keeps its questions)"
        ) from error
    for at, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield at, json.loads(line)
            except (ValueError, RecursionError) as error:  # also of numbers and nesting without end
                raise UserMistake(
                    f"{file}:{at} is not JSON that can be read: {error}; {WANTED}"
                ) from error


def identity(task: str, prompt: str) -> str:
    """A question's id: by its text, whatever file it stands in."""
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{task}-{digest[:16]}"


def split_of_text(task: str, text: str, shares: Mapping[str, float]) -> str:
    """The split of a task that a text belongs to, by its text alone: a hash says where it falls.

    `shares` has the share of each split, in the order in which the hash is cut; what rounding
    leaves over is the last one's.
    """
    digest = hashlib.sha256(f"{task} {text}".encode("utf-8", "surrogatepass")).digest()
    rest = int.from_bytes(digest[:8], "big") / 2**64
    for name, share in shares.items():
        if rest < share:
            return name
        rest -= share
    return list(shares)[-1]


# --- questions that are generated


def check_asked(
    task: str,
    split: str,
    splits: Collection[str],
    path: str | None,
    form: str = "",
    forms: Collection[str] = ("",),
) -> None:
    """An error for a file, since nothing is read, and for a split or form that there is not."""
    if path is not None:
        raise UserMistake(
            f"task {task} generates its questions and reads no file: leave out data={path!r}, or"
            f" write task=jsonl data={path}"
        )
    if split not in splits:
        raise UserMistake(f"task {task} has no split {split!r}: one of {', '.join(splits)}")
    if form not in forms:
        raise UserMistake(f"task {task} has no form {form!r}: one of {', '.join(forms)}")


def split_of_numbers(task: str, numbers: Sequence[int], shares: Mapping[str, float]) -> str:
    """The split of a task that numbers belong to, whatever their order.

    `shares` has the share of each split, in the order in which the hash is cut.
    """
    written = " ".join(map(str, sorted(numbers)))
    return split_of_text(task, written, shares)
