#!/usr/bin/env python3
"""Makes fixtures/scalars.tfevents: the events of tensorboard_events_test.cpp, written by TensorBoard's own code.

    .deps/python/bin/python tests/train/make_tensorboard_fixture.py
"""

import pathlib

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

VALUES = [("train/loss", 2.5), ("train/learning_rate", 3e-4), ("memory/activations", float(5 << 30)), ("train/grad_norm", float("inf")),
          ("eval_loss_by_position/8192-16383", -0.0)]
# Long enough that its length takes two bytes, as a value's and the summary's do then.
LONG_TAG = "train/" + "n" * 200

EVENTS = [
    Event(wall_time=1763740800.25, file_version="brain.Event:2"),
    Event(wall_time=1763740800.5, step=301, session_log=SessionLog(status=SessionLog.START)),
    Event(wall_time=1763740801.125, step=301, summary=Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in VALUES])),
    Event(wall_time=1763740802.0, step=5_000_000_000, summary=Summary(value=[Summary.Value(tag=LONG_TAG, simple_value=1)])),
]

target = pathlib.Path(__file__).parent / "fixtures" / "scalars.tfevents"
with open(target, "wb") as file:
    writer = RecordWriter(file)
    for event in EVENTS:
        writer.write(event.SerializeToString())
    writer.flush()
print(target, target.stat().st_size, "bytes")
