"""TensorBoard: event files in the run's own folder; `tensorboard --logdir runs` finds them.

A process that goes on with a run purges what was not noted as sent (`purge_step`). Leaves out: the
config.
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.trackers.sink import Sink, Tracked


def open(run: Tracked) -> Sink:
    """Return the event files of a run; each process writes one of its own."""
    return EventFiles(run)


class EventFiles(Sink):
    def __init__(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder), purge_step=run.sent + 1)

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            self.writer.add_scalar(name, figure, number)
        self.writer.flush()

    def alarm(self, number: int, kind: str, text: str) -> None:
        self.writer.add_text(f"alarm/{kind}", text, number)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
