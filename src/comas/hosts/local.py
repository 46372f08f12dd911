"""The kind of host that has weights in this process: its table, and how it is built from a plan.

Leaves out: the keys of the table (`hosts.local_table`), the host itself (`hosts.local_host`), what
it is made of (`hosts.build`).
"""

from __future__ import annotations

from comas.hosts.build import make_local_host
from comas.hosts.local_host import LocalHost
from comas.hosts.local_table import MAX_ROWS
from comas.hosts.local_table import Table as Table
from comas.hosts.out_of_memory import in_memory
from comas.hosts.plan import HostPlan


def build(plan: HostPlan[Table]) -> LocalHost:
    """Build the host that a plan describes; it learns where the plan names a method."""
    table = plan.table
    remedy = "have fewer agents, set {host}.learner=adapters, or take a smaller base"
    with in_memory(plan.name, "loading", remedy):
        return make_local_host(
            plan.name,
            plan.policies,
            method=plan.method,
            recipe=plan.recipe,
            engine=plan.engine,
            device=table.device,
            dtype=table.dtype,
            context=table.context,
            thinking=table.thinking,
            max_rows=table.max_rows or MAX_ROWS,
            prove_every=table.prove_every,
            trust_remote_code=table.trust_remote_code,
            under=plan.under,
            shapes=plan.shapes,
            lags=plan.lags,
            seed=plan.seed,
        )
