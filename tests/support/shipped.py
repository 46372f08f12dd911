"""Hosts that tests have built in actors, in a module that these can import."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from comas.engines import vllm
from comas.seams import EnginePlan, Weights
from comas.testing import Scripted
from comas.types import Ask, HostFailure, UserMistake


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
    if "unsendable" in prompt:
        return Unsendable(prompt)
    if "warn" in prompt:
        logging.getLogger("comas").warning("the far end warns of %s", prompt)
    if "die" in prompt:
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
        if words[0] == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return await super().ask(ask)

    async def save(self, path: Path) -> None:
        if (path / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await super().save(path)


def slow(name: str = "far") -> Slow:
    """A host that does what prompts say."""
    return Slow(polite, name)


def not_started(plan: EnginePlan, models: Mapping[str, Weights]) -> Any:
    """Tell what vLLM would be started with, and the GPUs that it would see, as a mistake."""

    def tell(**arguments: Any) -> Any:
        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        raise UserMistake(json.dumps({**arguments, "visible": visible}))

    library: Any = ModuleType("vllm")
    library.__spec__ = ModuleSpec("vllm", None)
    library.LLM = tell
    sys.modules["vllm"] = library
    return vllm.build(plan, models)


def unbuildable(how: str) -> Any:
    """A host that cannot be built, in one of several ways."""
    if how == "mistake":
        raise UserMistake("base 'nothing': no such folder")
    os._exit(5)
