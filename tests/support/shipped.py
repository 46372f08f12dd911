"""Hosts that tests ship to a far end, in a module that a child can import."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comas.testing import Scripted, ScriptedShipment
from comas.types import Ask, HostFailure, Method, UserMistake


class Unsendable(str):
    """A text that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this text stays here")


def polite(policy: str, role: str, prompt: str, seed: int) -> str:
    """What every policy says, but for a few words that mean trouble."""
    if "mistake" in prompt:
        raise UserMistake("a mistake of the user's")
    if "failure" in prompt:
        raise HostFailure("the machine let us down")
    if "odd" in prompt:
        raise Odd(1, 2)
    if "withdrawn" in prompt:
        raise asyncio.CancelledError
    if "leave" in prompt:
        raise SystemExit(5)
    if "unsendable" in prompt:
        return Unsendable(prompt)
    if "warn" in prompt:
        logging.getLogger("comas").warning("the far end warns of %s", prompt)
    if "print" in prompt:
        print("what a library prints")
    if "die" in prompt:
        print("these are my last words", file=sys.stderr)
        sys.stderr.flush()
        os._exit(7)
    if "environment" in prompt:
        return " ".join(sorted(os.environ))
    if "long" in prompt:
        return "word " * 100_000
    if "->" in prompt:
        return "1 + 2"
    return f"{policy} says {prompt} {seed}"


class Odd(Exception):
    """An error that cannot travel: it is made from two numbers and says one."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)


class Slow(Scripted):
    """Waits for a while where the prompt says for how long, and notes what was given up."""

    async def ask(self, ask: Ask) -> Any:
        words = ask.messages[-1]["content"].split()
        if words[0] == "wait":
            await asyncio.sleep(float(words[1]))
        if words[0] == "block":
            time.sleep(float(words[1]))
        if words[0] == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return await super().ask(ask)

    async def save(self, path: Path) -> None:
        if (path / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await super().save(path)


@dataclass(frozen=True)
class SlowShipment(ScriptedShipment):
    """The same for `Slow`."""

    def build(self) -> tuple[Slow, Method]:
        return Slow(self.script, self.name), self.method


@dataclass(frozen=True)
class Unbuildable:
    """A host that cannot be built, in one of several ways."""

    how: str

    def build(self) -> Any:
        if self.how == "mistake":
            raise UserMistake("base 'nothing': no such folder")
        if self.how == "exit":
            os._exit(5)
        if self.how == "hang":
            time.sleep(600)
        raise AssertionError(self.how)
