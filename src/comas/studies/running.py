"""Runs the cells of a study that are not done, several at once.

Each command is a process of its own; what it comes to does not depend on how many run beside it.
Ctrl-C ends them in order, and everything can be gone on with. Leaves out: how a process is started
(`studies.here`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import filelock

from comas.exit_codes import ALARMED
from comas.studies.cells import Cell, Stage
from comas.studies.here import Place
from comas.types import UserMistake

PATIENCE = 60.0
"""Seconds to wait for a process of an earlier try that is still ending."""
TAIL = 20_000
"""Bytes of a log in which the reason of a failure is looked for."""


@dataclass(frozen=True)
class Ended:
    """What became of a cell."""

    cell: Cell
    seconds: float
    failure: str
    """Empty where it is done."""


def run_cells(
    cells: Sequence[Cell], jobs: int, place: Place, tell: Callable[[Ended], None]
) -> None:
    """Run what is left of these cells; `tell` hears of each when it has ended.

    A cell that fails is recorded, and the others go on. Raises KeyboardInterrupt when it was
    stopped and all processes have ended.
    """
    stopping = threading.Event()
    with ThreadPoolExecutor(jobs) as pool, _stoppable():
        waiting = [pool.submit(_work, cell, place, stopping) for cell in cells]
        try:
            _tell_all(waiting, tell)
        except BaseException:
            stopping.set()
            place.stop()
            _to_the_end(waiting, place)
            raise


def _tell_all(waiting: Sequence[Future[Ended | None]], tell: Callable[[Ended], None]) -> None:
    left = set(waiting)
    while left:
        # with a time limit: on Windows a wait without one hears no Ctrl-C
        ready, left = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
        for future in [future for future in waiting if future in ready]:
            ended = future.result()
            if ended is not None:
                tell(ended)


def _to_the_end(waiting: Sequence[Future[Ended | None]], place: Place) -> None:
    """Wait until all have stopped; one more Ctrl-C ends them at once."""
    while any(not future.done() for future in waiting):
        try:
            wait(waiting, timeout=1.0)
        except KeyboardInterrupt:
            place.kill()


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM is heard like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _work(cell: Cell, place: Place, stopping: threading.Event) -> Ended | None:
    """All commands that a cell has left; None where it was stopped."""
    if stopping.is_set():
        return None
    began = time.monotonic()
    failure = ""
    try:
        failure = _commands(cell, place, stopping)
    except (OSError, UserMistake) as error:
        failure = _line(str(error))
        cell.write_failure("train", failure)
    if stopping.is_set() and cell.stages():
        return None
    return Ended(cell, time.monotonic() - began, failure)


def _commands(cell: Cell, place: Place, stopping: threading.Event) -> str:
    """Run them; returns the reason where one failed."""
    if not cell.trained:
        cell.write_config()
    cell.forget_failure()
    threads = cell.setting.resolved.config.threads
    for stage in cell.stages():
        _wait_for(stage)
        size = cell.log.stat().st_size if cell.log.is_file() else 0
        code = place.run(stage.arguments, cell.log, threads)
        # a run that an alarm has ended is measured and done
        is_done = code in (0, ALARMED)
        if stopping.is_set() and not is_done:
            return ""
        if not is_done:
            reason = _reason(cell, size, code)
            cell.write_failure(stage.name, reason)
            return f"{stage.name}: {reason}"
        if stage.name == "train":
            cell.write_trained()
    return ""


def _wait_for(stage: Stage) -> None:
    """Wait until no process of an earlier try works there any more."""
    if not stage.folder.is_dir():
        return
    try:
        with filelock.FileLock(stage.folder / ".lock", timeout=PATIENCE):
            return
    except (filelock.Timeout, NotImplementedError):  # said by the command itself
        return


def _reason(cell: Cell, start: int, code: int) -> str:
    """The last line that says what was wrong, of what was written after the first `start` bytes."""
    with cell.log.open("rb") as log:
        log.seek(start)
        lines = log.read()[-TAIL:].decode("utf-8", "replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    mistakes = [line for line in said if line.startswith("error: ")]
    if mistakes:
        return _line(mistakes[-1].removeprefix("error: "))
    died = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return _line(f"{died}: {said[-1]}") if said else died


def _line(text: str) -> str:
    return " ".join(text.split())
