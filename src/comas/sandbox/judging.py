"""The side of the tests: they are run against a program in another process, of which they see
nothing but literal values.

Runs where `inside` does, and imports as little. Leaves out: which tests (`answers.code`).
"""

from __future__ import annotations

import builtins
import json
import sys

from comas.sandbox.literals import decode, encode, plain

TYPE_CHECKING = False  # importing typing takes three milliseconds
if TYPE_CHECKING:
    import ast
    from typing import Any


def words(error: BaseException) -> str:
    """Return the beginning of the text of an error; nothing where that fails."""
    try:
        return str(error)[:300]  # a second copy of all of it may need more memory than there is
    except Exception:  # noqa: BLE001 - whatever a program's own error does
        return ""


class _Gone(BaseException):
    """The program ended, or was ended, before it answered."""


class _Missing(BaseException):
    """A function that the program does not have is called: no test may take it for an error that it
    waits for.
    """


class _Program:
    """The program on the other side, as its tests see it: a module whose functions are asked for.

    `seen`: a list to which the outcome of each call is added, or None.
    """

    def __init__(self, receive: Any, send: Any, seen: list[Any] | None) -> None:
        self.receive = receive
        self.send = send
        self.seen = seen
        self.calls = 0

    def as_module(self) -> Any:
        """A module `solution` that has a stand-in for every name but those of modules' own."""
        module = type(json)("solution")

        def stand_in(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self.function(name)

        module.__dict__["__getattr__"] = stand_in
        return module

    def function(self, name: str) -> Any:
        """A stand-in for a function of the program."""

        def call(*args: Any, **named: Any) -> Any:
            return self._call(name, args, named)

        return call

    def ask(self, question: dict[str, Any]) -> Any:
        """Send a request and wait for what it comes to. Raises what the program raised, as the
        nearest builtin error, and _Gone.
        """
        self.send(question)
        line = self.receive.readline()
        if not line.endswith("\n"):
            raise _Gone
        result = json.loads(line)
        if "error" in result:
            raise _built(str(result["error"]), decode(result["args"]))
        return result

    def _call(self, name: str, args: Any, named: Any) -> Any:
        self.calls += 1
        try:
            result = self.ask({"call": name, "args": encode(args), "named": encode(named)})
        except Exception as error:
            if self.seen is not None:
                self.seen.append(["raised", type(error).__name__])
            raise
        if "missing" in result:
            raise _Missing(name)
        args_after, named_after = decode(result["args"]), decode(result["named"])
        if self.seen is not None:
            self.seen.append(["gave", plain(decode(result["value"])), plain(args_after)])
        # what it did to its arguments
        for before, after in zip(args, args_after, strict=True):
            _change(before, after)
        for key, before in named.items():
            _change(before, named_after[key])
        return decode(result["value"])


def _change(before: Any, after: Any) -> None:
    """Have a container of the tests hold what the program left in its copy of it."""
    if isinstance(before, list) and type(after) is list:
        before[:] = after
    elif isinstance(before, dict | set) and type(after) is type(before):
        before.clear()
        before.update(after)


def _built(name: str, args: Any) -> Exception:
    """A builtin error with its arguments; its nearest base that takes them where it does not."""
    kind: Any = getattr(builtins, name, None)
    # a StopIteration would end a loop of the tests as if all of it had held
    is_known = isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration
    for base in kind.__mro__ if is_known else ():
        try:
            return base(*args)
        except Exception:  # noqa: BLE001 - it wants other arguments
            continue
    return RuntimeError(name, *args)


def judge(receive: Any, send: Any, case: dict[str, Any]) -> None:
    """Run the tests of a case against the program on the other side, and say how it went."""

    def say(verdict: str, why: str = "", **more: Any) -> None:
        send({"verdict": verdict, "why": why[:300], **more})

    program = _Program(receive, send, case.get("seen"))
    sys.modules["solution"] = program.as_module()
    try:
        space, tests = _prepared(case)
    except BaseException as error:  # noqa: BLE001 - the tests' own
        say("failed", f"the tests do not run: {_named(error)}")
        return
    try:
        try:
            missing = program.ask({"program": case["program"], "names": case["names"]})["missing"]
        except Exception as error:  # noqa: BLE001 - the program's own
            say("wrong", f"the program does not run: {_named(error)}")
            return
        present = [name for name in case["names"] if name not in missing]
        needed = [name for name in missing if not present or not hasattr(builtins, name)]
        if needed:
            raise _Missing(needed[0])
        for name in present:
            space[name] = program.function(name)
        if "value" in case:
            say("right", value=program.function(case["value"])())
        elif "seen" in case:
            import hashlib

            _call_all(space, tests)
            seen = case["seen"]
            values = sum(one[0] == "gave" for one in seen)
            digest = hashlib.sha256(json.dumps(seen).encode()).hexdigest()
            say("right", seen={"calls": len(seen), "values": values, "digest": digest})
        elif not _passes(case, space, tests, program):
            say("failed", "there are no tests")
        elif not program.calls:
            say("failed", "the tests call nothing of the program")
        else:
            say("right")
    except _Missing as error:
        say("wrong", f"the program has no function {error}")
    except _Gone:
        say("wrong", "the program ended before it answered")
    except AssertionError as error:
        say("wrong", f"a test does not hold {words(error)}")
    except BaseException as error:  # noqa: BLE001 - raised by the program, or by what it returned
        say("wrong", _named(error))


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {words(error)}"


def _prepared(case: dict[str, Any]) -> tuple[dict[str, Any], ast.Module]:
    """Return the names that the tests see, and the tests; no function of the program is among them
    yet.
    """
    import ast

    space: dict[str, Any] = {"__name__": "tests"}
    exec(compile(case["setup"], "<setup>", "exec"), space)

    tests = ast.parse(case["tests"])
    if "seen" not in case:
        _check_runnable(tests)
    return space, tests


def _check_runnable(tests: ast.Module) -> None:
    """An error where tests cannot run whatever the program is: they import what is not here, or
    are functions of arguments that nobody gives.
    """
    import ast

    waiting: list[ast.AST] = list(tests.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), "<imports>", "exec"), {"__name__": "tests"})
        elif not isinstance(node, ast.Try):  # it says itself what happens without
            waiting.extend(ast.iter_child_nodes(node))
    for test in _functions(tests):
        arguments = test.args
        required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
        required += sum(default is None for default in arguments.kw_defaults)
        if required and not test.decorator_list:  # a decorator may give them
            raise TypeError(f"{test.name} takes arguments, and nothing gives it any")


def _functions(tests: ast.Module) -> list[ast.FunctionDef]:
    """The tests that are functions."""
    import ast

    functions = [node for node in tests.body if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if function.name.startswith("test")]


def _passes(
    case: dict[str, Any], space: dict[str, Any], tests: ast.Module, program: _Program
) -> bool:
    """Run the tests; returns whether any was run: an assert in a class, in a coroutine or below
    `__main__`, where nobody runs it, is none. A failing test raises.
    """
    import ast

    class Counting(ast.NodeTransformer):
        """Has each assert say that it is reached; so does a `try` around one, which is a test where
        the error that it waits for comes.
        """

        def visit_Assert(self, node: ast.Assert) -> Any:
            return self._told(node)

        def visit_Try(self, node: ast.Try) -> Any:
            tests = any(isinstance(below, ast.Assert) for below in ast.walk(node))
            self.generic_visit(node)
            return self._told(node) if tests else node

        def _told(self, node: ast.stmt) -> list[ast.stmt]:
            call = ast.Call(ast.Name("__reached__", ast.Load()), [], [])
            return [ast.copy_location(ast.Expr(call), node), node]

    reached: list[int] = []
    space["__reached__"] = lambda: reached.append(1)
    counted = ast.fix_missing_locations(Counting().visit(tests))
    exec(compile(counted, "<tests>", "exec"), space)
    if case["check"]:
        space["check"](program.function(case["check"]))
        return True
    functions = _functions(tests)
    for test in functions:
        space[test.name]()
    return bool(functions) or bool(reached)


def _call_all(space: dict[str, Any], tests: ast.Module) -> None:
    """Run the tests, each statement by itself; whether an assert holds changes nothing of what
    follows.
    """
    import ast

    class Harmless(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> ast.stmt:
            handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
            return ast.copy_location(ast.Try([ast.Expr(node.test)], [handler], [], []), node)

    calls: list[ast.stmt] = [
        ast.Expr(ast.Call(ast.Name(test.name, ast.Load()), [], [])) for test in _functions(tests)
    ]
    for statement in tests.body + calls:
        module = ast.fix_missing_locations(ast.Module([Harmless().visit(statement)], []))
        try:
            exec(compile(module, "<calls>", "exec"), space)
        except Exception:  # noqa: BLE001 - the program's, or an example that does not run
            continue
