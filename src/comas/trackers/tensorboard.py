"""TensorBoard: event files in the run's own folder, which `tensorboard --logdir runs` finds. Each
process writes one of its own, and purges what was not noted as sent.

Leaves out: when a figure is sent (`trackers.sink`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.trackers.sink import Sink, Tracked


class TensorBoard(Sink):
    def __init__(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder), purge_step=run.sent + 1)

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            self.writer.add_scalar(name, figure, number)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def open(run: Tracked) -> Sink:
    """Open TensorBoard for this run."""
    return TensorBoard(run)
