"""Rows of a running batch, as every engine that decodes in this process has them.

Leaves out: what is cached of a row (`hf/slots.py`, `stacked/llama.py`), what is drawn (`tape.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from comas.seams import Request, StaleWeights, Weighing

LEAVE = 0.9
"""Fraction of live rows below which finished rows are dropped when no request waits (cheap: those
that stay move within their buffers).
"""


def moved(buffer_NKSW: Tensor, rows: Sequence[int], used: int) -> Tensor:
    """Move these rows of keys or values to the front, the first `used` slots of each; a row that
    moves away from the front is lost.

    They move within their buffer: fresh memory would cost ten times the copying.
    """
    for place, row in enumerate(rows):
        if place != row:
            buffer_NKSW[place, :, :used] = buffer_NKSW[row, :, :used]
    return buffer_NKSW[: len(rows)]


def by_policy(
    requests: Sequence[Request | Weighing], policies: Iterable[str]
) -> dict[str, list[int]]:
    """Policy -> places of its requests, for all policies; KeyError for a request of another one."""
    places: dict[str, list[int]] = {policy: [] for policy in policies}
    unknown = sorted({r.policy for r in requests} - set(places))
    if unknown:
        raise KeyError(f"no policy {', '.join(unknown)} at this engine: it has {', '.join(places)}")
    for place, request in enumerate(requests):
        places[request.policy].append(place)
    return places


def check_policy(policy: str, policies: Sequence[str]) -> None:
    """Refuse weights of a policy that the engine was not built with."""
    if policy not in policies:
        raise StaleWeights(
            f"policy {policy!r} is not at this engine, which has {', '.join(policies)}"
        )


def check_context(requests: Sequence[Request], context: int) -> None:
    """Refuse what does not fit: rows that have ended are held within the context, and so would be
    one that has not.
    """
    for request in requests:
        needed = len(request.prompt_ids) + request.sampling.max_tokens
        if needed > context:
            raise ValueError(
                f"a prompt and its reply need {needed} tokens, and the context has {context}"
            )


def check_choices(weighings: Sequence[Weighing], context: int) -> None:
    """Refuse choices without tokens, and prompts that do not fit together with a choice."""
    for weighing in weighings:
        lengths = list(map(len, weighing.choices))
        if not all(lengths):
            raise ValueError("a choice to be weighed has no token")
        needed = len(weighing.prompt_ids) + max(lengths, default=0)
        if needed > context:
            raise ValueError(
                f"a prompt and its longest choice need {needed} tokens, and the context has"
                f" {context}"
            )
