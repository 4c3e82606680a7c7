"""TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, final

from nowait.core import checks
from nowait.recording.loggers.logger import Logger, Opening
from nowait.recording.loggers.measurements import FINISHED


@final
class TensorBoard(Logger):
    """Writes a run for TensorBoard: ``callbacks=[nw.TensorBoard("logs/mine")]``, then ``tensorboard --logdir logs``.

    Needs the package ``tensorboard``; without it the start of a run raises ``ImportError``.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(checks.path(folder))
        self._writer: Any = None
        self._step = 0

    @property
    def name(self) -> str:
        """TensorBoard and the folder."""
        return f"TensorBoard {self._folder}"

    def open(self, opening: Opening) -> str | None:
        """Open a new file in the folder, and write the config for the tab HParams."""
        try:
            from tensorboard.compat.proto.event_pb2 import SessionLog
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError("nw.TensorBoard needs the package tensorboard: pip install tensorboard") from error
        self._writer, self._step = EventFileWriter(str(self._folder)), opening.step
        if opening.step:  # TensorBoard discards what an interrupted run wrote after its last checkpoint
            self._write(opening.step + 1, session_log=SessionLog(status=SessionLog.START))
        self._write(opening.step, summary=_start(opening, self._folder))
        self._writer.flush()
        return None

    def log(self, values: dict[str, float], step: int) -> None:
        """Write one event, and flush the file."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._step = step
        numbers = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step, summary=Summary(value=numbers))
        self._writer.flush()

    def close(self, state: str) -> None:
        """Write how the run ended, and close the file."""
        try:
            self._write(self._step, summary=_end(state))
        finally:
            self._writer.close()
            self._writer = None

    def _write(self, step: int, **contents: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, **contents))


def _start(opening: Opening, folder: Path) -> Any:
    """Return the summary with the config, for the tab HParams."""
    from tensorboard.plugins.hparams import summary_v2

    known = {name: value for name, value in opening.config.items() if value is not None}
    return summary_v2.hparams_pb(known, trial_id=folder.name)


def _end(state: str) -> Any:
    """Return the summary with the state at the end, for the tab HParams and the tab Text."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    status = api_pb2.STATUS_SUCCESS if state == FINISHED else api_pb2.STATUS_FAILURE
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    data = plugin_data_pb2.HParamsPluginData(session_end_info=end)
    return Summary(
        value=[
            Summary.Value(
                tag=metadata.SESSION_END_INFO_TAG,
                metadata=metadata.create_summary_metadata(data),
                tensor=metadata.NULL_TENSOR,
            ),
            Summary.Value(tag="state", metadata=create_summary_metadata("", ""), tensor=make_tensor_proto([state])),
        ]
    )
