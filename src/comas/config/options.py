"""Options of methods, tasks and setups: keywords of the functions that use them.

Leaves out: whose they are (`config.resolve`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from comas.config.mistakes import nearest
from comas.types import Method, UserMistake


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, through `partial`."""
    return function.func if isinstance(function, partial) else function


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only parameters of a function and their defaults; through `partial`.

    `state` is none of them: it is what a method remembers.
    """
    parameters = inspect.signature(unwrapped(function)).parameters.values()
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "state"]
    return {p.name: p.default for p in named}


def filled(table: str, given: Mapping[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """Check the given options against the annotations of these functions' keywords, and add the
    defaults of the others.
    """
    defaults: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for function in functions:
        defaults |= keywords(function)
        hints |= _hints(function)
    values = dict(defaults)
    for key, value in given.items():
        if key not in defaults:
            raise UserMistake(f"unknown key {table}.{key}: {nearest(key, defaults)}")
        try:
            values[key] = _of_type(hints.get(key, Any), value)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise UserMistake(f"{table}.{key} = {value!r}: {message}") from error
        except PydanticSerializationError as error:  # from Python
            raise UserMistake(
                f"{table}.{key} is {type(value).__name__}: take a value that TOML can hold"
            ) from error
    for key, value in values.items():
        if value is inspect.Parameter.empty:
            raise UserMistake(f"{table}.{key} has no default: set it")
    return values


def _of_type(hint: Any, value: Any) -> Any:
    """Check a value against an annotation."""
    # as JSON: a list from TOML is a tuple where one is asked for, but text is never a number
    text = to_json(value, inf_nan_mode="strings")
    return TypeAdapter(hint).validate_json(text, strict=True)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = unwrapped(function)
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:  # imported for the type checker only
        raise UserMistake(
            f"{function.__name__}: the annotation of an option cannot be read, {error}"
        ) from error


def split_options(options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The options that this function takes."""
    taken = keywords(function)
    return {key: value for key, value in options.items() if key in taken}


def functions_of(method: Method) -> list[Callable[..., Any]]:
    """The functions of a method that take its options."""
    functions = (method.settle, method.play, method.start, method.draw, method.update)
    return [function for function in functions if function is not None]
