"""One-token passes through torch.compile, with sizes left open: few graphs serve all batches and
lengths.

Weights are inputs of the graphs, so that training needs no new ones. Where compiling fails (no C++
compiler, no Triton, a family that cannot be traced) the model runs as it is, and a warning says so.
Leaves out: CUDA graphs, which want fixed sizes.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

LOG = logging.getLogger("comas")


class Compiled:
    """A model's forward pass; compiled at the first pass of one token per row."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.quick = torch.compile(model.forward, dynamic=True)
        self.failed: str | None = None
        """Why it runs as it is."""

    def __call__(self, **given: Any) -> Any:
        """The model's output for these arguments."""
        if self.failed is not None or given["input_ids"].shape[1] > 1:
            return self.model(**given)
        from torch._dynamo.exc import TorchDynamoException

        try:
            return self.quick(**given)
        except TorchDynamoException as error:  # before anything ran: the cache is as it was
            self.failed = str(error).partition("\n")[0][:200]
            LOG.warning(
                "torch.compile does not work here, sampling goes on without it"
                " (hosts.<name>.compile): %s",
                self.failed,
            )
            return self.model(**given)
