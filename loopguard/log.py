"""The log: one line a record, as JSON or as text, that nobody but loopguard can write.

Figures travel as fields of their own and not inside the message::

    _log.info("exchange ended", extra=fields(profile="default", attempts=2))

What a model or a caller wrote cannot forge a line or steer a terminal: JSON is kept to ASCII, text
has everything escaped that is not printable, and no text is longer than ``MAX_TEXT_CHARS``.

A library's record may hold anything that the library was handling, a header or a body included. So
only loopguard's own messages are written whole. Of a foreign record the first line of its template
is written, without arguments; of an exception its class and where it was raised, without its
message. That is the blind spot: what an exception said has to be found by where it was raised.
"""

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO, TypeAlias

from loopguard.core.text import one_line

Format: TypeAlias = Literal["json", "text"]

Field: TypeAlias = str | int | float | bool | None
"""What a field may be."""

MAX_TEXT_CHARS = 1000
"""Several times the longest sentence of loopguard's own; a name that a caller made up is cut."""

_MAX_FRAMES = 8
"""The innermost frames say where an exception came from; the outer ones are the framework's."""


def fields(**values: Field) -> dict[str, dict[str, Field]]:
    """The ``extra`` of a record that carries these fields."""
    return {"fields": values}


def configure(level: str, format: Format, stream: TextIO | None = None) -> None:  # noqa: A002  the setting's name
    """Send every record of the process to one stream, in place of all handlers there were.

    Args:
        level: the least level that is written: debug, info, warning or error.
        format: one JSON object a line, or text for people.
        stream: where to; None is the process's stderr.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def adjust(level: str, format: Format) -> None:  # noqa: A002  the setting's name
    """Write from now on records of this level, in this form, to where they are written."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for handler in root.handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.setFormatter(LineFormatter(format))


class LineFormatter(logging.Formatter):
    """Writes a record as one line."""

    def __init__(self, format: Format) -> None:  # noqa: A002  the setting's name
        super().__init__()
        self._as_json = format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname.lower(), _cut(_message(record))
        told = {key: _bounded(value) for key, value in _fields(record).items()}
        if self._as_json:
            own = {"time": time, "level": level, "logger": record.name, "message": message}
            return json.dumps(own | told | own)
        pairs = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in told.items()]
        return one_line(" ".join([time, level, f"{record.name}:", message, *pairs]))


def _message(record: logging.LogRecord) -> str:
    if record.name.partition(".")[0] == "loopguard":
        return record.getMessage()
    return str(record.msg).partition("\n")[0]


def _fields(record: logging.LogRecord) -> Mapping[str, Field]:
    told: dict[str, Field] = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[0] is not None:
        error, _, raised = record.exc_info
        told["error"] = error.__qualname__
        told["raised"] = _places(raised)
    return told


def _places(raised: TracebackType | None) -> str:
    """Where an exception was raised, the innermost frame last."""
    frames = traceback.StackSummary.extract(
        traceback.walk_tb(raised), limit=-_MAX_FRAMES, lookup_lines=False
    )
    return " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)


def _bounded(value: Any) -> Any:
    """A field's value with every text of it cut, those of the lists and objects in it too."""
    match value:
        case str():
            return _cut(value)
        case dict():
            return {key: _bounded(inner) for key, inner in value.items()}
        case list():
            return [_bounded(inner) for inner in value]
        case _:
            return value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}..."
