"""TensorBoard: event files in the run's own folder; `tensorboard --logdir runs` finds them.

A step is one record, with a checksum: after a kill there is all of it or none. Leaves out: the
config.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from comas.trackers.sink import Sink, Tracked


def open(run: Tracked) -> Sink:
    """The event files of a run; each process writes one of its own."""
    return EventFiles(run)


class EventFiles(Sink):
    def __init__(self, run: Tracked) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.stored = EventAccumulator(str(run.folder), {"scalars": 0})
        self.stored.Reload()
        self.writer = EventFileWriter(str(run.folder))

    def last(self, figure: str) -> int:
        if figure not in self.stored.Tags()["scalars"]:
            return -1
        return max(scalar.step for scalar in self.stored.Scalars(figure))

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore

        values = [Summary.Value(tag=name, simple_value=x) for name, x in figures.items()]
        event = Event(step=number, wall_time=time.time(), summary=Summary(value=values))
        self.writer.add_event(event)

    def alarm(self, number: int, kind: str, text: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        words = Summary.Value(
            tag=f"alarm/{kind}",
            metadata=create_summary_metadata(display_name="", description=""),
            tensor=make_tensor_proto([text.encode()]),
        )
        event = Event(step=number, wall_time=time.time(), summary=Summary(value=[words]))
        self.writer.add_event(event)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
