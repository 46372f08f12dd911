"""The side of the tests: they are run against a program in another process, of which they see
nothing but literal values.

Runs where `inside` does, and imports as little. Leaves out: which tests (`answers.code`).
"""

from __future__ import annotations

import builtins
import json

from comas.sandbox.literals import decode, encode, plain

TYPE_CHECKING = False  # importing typing takes three milliseconds
if TYPE_CHECKING:
    import ast
    from typing import Any


def words(error: BaseException) -> str:
    """What an error says; nothing where that fails, as with a key of too many digits."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a program's own error does
        return ""


class _Asked:
    """A function of the program, as its tests see it."""

    def __init__(self, name: str, receive: Any, send: Any, seen: list[Any] | None = None) -> None:
        self.name = name
        self.receive = receive
        self.send = send
        self.seen = seen

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.send({"call": self.name, "args": encode(given), "named": encode(named)})
        try:
            told = _told(self.receive)
        except Exception as error:
            if self.seen is not None:
                self.seen.append(["raised", type(error).__name__])
            raise
        if self.seen is not None:
            self.seen.append(["gave", plain(decode(told["value"])), plain(decode(told["args"]))])
        # what it did to its arguments
        for before, after in zip(given, decode(told["args"]), strict=True):
            if isinstance(before, list) and type(after) is list:
                before[:] = after
            elif isinstance(before, dict | set) and type(after) is type(before):
                before.clear()
                before.update(after)
        return decode(told["value"])


class _Gone(BaseException):
    """The program ended, or was ended, before it answered."""


def _told(receive: Any) -> Any:
    line = receive.readline()
    if not line.endswith("\n"):
        raise _Gone
    told = json.loads(line)
    if "error" in told:
        kind: Any = getattr(builtins, str(told["error"]), None)
        text = told.get("text", "")
        # a StopIteration would end a loop of the tests as if all of it had held
        known = isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration
        raise kind(text) if known else RuntimeError(f"{told['error']}: {text}")
    return told


def judge(receive: Any, send: Any, case: dict[str, Any]) -> None:
    """Run the tests of a case against the program on the other side, and say how it went."""

    def say(verdict: str, why: str = "", **more: Any) -> None:
        send({"verdict": verdict, "why": why[:300], **more})

    try:
        space, tests = _prepared(case, receive, send)
    except BaseException as error:  # noqa: BLE001 - the tests' own
        say("failed", f"the tests do not run: {_named(error)}")
        return
    try:
        send({"program": case["program"]})
        try:
            _told(receive)
        except Exception as error:  # noqa: BLE001 - the program's own
            say("wrong", f"the program does not run: {_named(error)}")
            return
        if "value" in case:
            say("right", value=_Asked(case["value"], receive, send)())
        elif "seen" in case:
            import hashlib

            _call_all(space, tests)
            seen = case["seen"]
            values = sum(one[0] == "gave" for one in seen)
            digest = hashlib.sha256(json.dumps(seen).encode()).hexdigest()
            say("right", seen={"calls": len(seen), "values": values, "digest": digest})
        elif _passes(case, space, tests, receive, send):
            say("right")
        else:
            say("failed", "there are no tests")
    except _Gone:
        say("wrong", "the program ended before it answered")
    except AssertionError as error:
        say("wrong", f"a test does not hold {words(error)}")
    except BaseException as error:  # noqa: BLE001 - raised by the program, or by what it returned
        say("wrong", _named(error))


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {words(error)}"


def _prepared(case: dict[str, Any], receive: Any, send: Any) -> tuple[dict[str, Any], ast.Module]:
    """Return the names that the tests see, and the tests.

    The functions of the program are stand-ins that ask the other process.
    """
    import ast

    space: dict[str, Any] = {"__name__": "tests"}
    exec(compile(case["setup"], "<setup>", "exec"), space)

    class WithoutSolution(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
            return ast.Pass() if node.module == "solution" else node

    tests = ast.fix_missing_locations(WithoutSolution().visit(ast.parse(case["tests"])))
    if "seen" not in case:
        _check_runnable(tests)
    for name in case["names"]:
        space[name] = _Asked(name, receive, send, case.get("seen"))
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
    case: dict[str, Any], space: dict[str, Any], tests: ast.Module, receive: Any, send: Any
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
        space["check"](_Asked(case["check"], receive, send))
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
