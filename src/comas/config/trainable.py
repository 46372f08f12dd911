"""Whether a config can be trained: what is known before a model is loaded.

Leaves out: what a machine has room for (`forecast`), and where a run is written.
"""

from __future__ import annotations

from comas.config.ahead import check_ahead
from comas.config.policies import Resolved
from comas.config.rehearsal import check_taken
from comas.config.roles import check_kl, check_roles, check_seats


def check_training(resolved: Resolved) -> None:
    """An error for what training refuses of a config, in a dry run and in a study too."""
    config, method, task, _ = resolved
    check_kl(config, method)
    check_roles(config, method, task)
    check_ahead(resolved)
    check_seats(config, method, learn=True)
    check_taken(resolved)
