"""Structured logs: one logger a module, an event and its fields a line.

    log = logs.get(__name__)
    log.info("node_ready", node="n1", generation=3)

A terminal gets `10:31:07.250 info  edge.link node_ready node=n1 generation=3`, anything else one JSON object a line.
What goes into a field is the caller's decision and the rule is short: names from the configuration, numbers, reasons.
Never a token, a header that no allow-list names, or a byte of a body.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import IO, NamedTuple

import orjson

ROOT = "iop_fast"

LINE = orjson.OPT_APPEND_NEWLINE
JSON_START = b'{"time":"'
# The second and the millisecond that `stamp` rendered last: most stamps are of the same ones.
_second, _second_text = 0, b""
_milli, _milli_text = 0, b""
# What `setup` was given last.
_setup_level = "info"
# Characters that may stand unquoted in a `key=value` line; everything else is quoted the way JSON does it, so that no
# field can end a line or forge another field.
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@+-,[]*")


class EventLog:
    """A module's logger. Fields are keyword arguments; they cost nothing while the level is off."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    @property
    def is_debug(self) -> bool:
        """True when debug lines are written: guards fields that are dear to compute."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, event: str, **fields: object) -> None:
        """Log detail that only a search for a fault wants."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log a step of the life cycle."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log what an operator should look at though service goes on."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log what is broken."""
        self._write(logging.ERROR, event, fields)

    def failure(self, event: str, error: BaseException, **fields: object) -> None:
        """Log a bug of ours, with its traceback."""
        self._write(logging.ERROR, event, fields, error)

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            cause = None if error is None else (type(error), error, error.__traceback__)
            self._logger.log(level, event, extra={"fields": fields}, exc_info=cause)


def get(module: str) -> EventLog:
    """Return the logger of a module; pass `__name__`."""
    return EventLog(logging.getLogger(module))


class TextFormatter(logging.Formatter):
    """Lines for people at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Render local time, level, module, event and `key=value` fields, then a traceback if there is one."""
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        parts = [at, f"{record.levelname.lower():<7}", record.name.removeprefix(ROOT + "."), record.getMessage()]
        parts += [f"{name}={as_plain(value)}" for name, value in fields_of(record).items()]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """Render `time` (RFC 3339, UTC), `level`, `logger`, `event`, the fields, and `traceback` if there is one."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in fields_of(record).items():
            entry[name if name not in entry else f"field_{name}"] = value
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(entry, default=str).decode()
        except orjson.JSONEncodeError:  # a lone surrogate (an odd file name), an integer over 64 bits
            return json.dumps(entry, default=str)


def stamp() -> bytes:
    """Return the time of now as RFC 3339 with milliseconds, UTC."""
    global _second, _second_text, _milli, _milli_text
    milli = int(time.time() * 1000)
    if milli != _milli:
        second = milli // 1000
        if second != _second:
            _second, _second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        _milli, _milli_text = milli, b"%b.%03d+00:00" % (_second_text, milli - second * 1000)
    return _milli_text


def line_renderer(module: str) -> Callable[[str, Mapping[str, object]], bytes]:
    """Return a function that renders an info line of a module as `setup` would have it written, its end included.

    For lines that somebody else writes. As JSON a line costs about a microsecond, a tenth of one that goes through
    `logging`.
    """
    name = logging.getLogger(module).name
    if not is_json():
        formatter = logging.getLogger().handlers[0].formatter
        assert isinstance(formatter, TextFormatter)

        def as_text(event: str, fields: Mapping[str, object]) -> bytes:
            record = logging.LogRecord(name, logging.INFO, "", 0, event, None, None)
            record.fields = fields
            return formatter.format(record).encode() + b"\n"

        return as_text

    def as_json(event: str, fields: Mapping[str, object]) -> bytes:
        rest = orjson.dumps(fields, None, LINE)
        return b"%b%b%b%b" % (JSON_START, stamp(), json_middle(name, event), rest[1:])

    return as_json


def json_middle(name: str, event: str) -> bytes:
    """Return what stands between the time of an info line and its fields; JSON_START stands before the time."""
    return b'","level":"info","logger":%b,"event":%b,' % (orjson.dumps(name), orjson.dumps(event))


def is_json() -> bool:
    """True while `setup` has lines written as JSON."""
    handlers = logging.getLogger().handlers
    return not (handlers and isinstance(handlers[0].formatter, TextFormatter))


def setup(level: str = "info", stream: IO[str] | None = None) -> None:
    """Send this program's logs to `stream` (standard error): text for a terminal, JSON lines for anything else.

    `level` is debug, info, warning or error. Calling it again replaces what an earlier call set up.
    """
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(TextFormatter() if out.isatty() else JsonFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    global _setup_level
    _setup_level = level
    # Libraries speak up from warning on; ours from the level asked for.
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())


class LoggerLevel(NamedTuple):
    """The level of a logger; `is_own` says that it was set for this one and is not that of one above."""

    logger: str
    level: str
    is_own: bool


LEVELS = ("debug", "info", "warning", "error")


def levels() -> list[LoggerLevel]:
    """Return the level of every logger of this program, "" (all of them) first, by name."""
    names = sorted(name for name in logging.root.manager.loggerDict if name.startswith(ROOT + "."))
    return [level_of(name) for name in (ROOT, *names)]


def level_of(name: str) -> LoggerLevel:
    """Return the level of one logger, by its full name."""
    logger = logging.getLogger(name)
    effective = logging.getLevelName(logger.getEffectiveLevel()).lower()
    return LoggerLevel(name[len(ROOT) + 1 :], effective, logger.level != logging.NOTSET)


def set_level(logger: str, level: str) -> LoggerLevel:
    """Set the level of a logger and of all below it; "" is all of them, `level` is one of LEVELS or "default".

    "default" is that of the logger above, for all of them what `setup` was given. Raises KeyError for a logger that
    this program does not have.
    """
    name = f"{ROOT}.{logger}" if logger else ROOT
    if logger and not any(known == name or known.startswith(name + ".") for known in logging.root.manager.loggerDict):
        raise KeyError(logger)
    if level == "default":
        level = "notset" if logger else _setup_level
    logging.getLogger(name).setLevel(level.upper())
    return level_of(name)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a record; one that came through plain `logging` has none."""
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def as_plain(value: object) -> str:
    """Render a field for a `key=value` line; quoted where it holds anything but PLAIN characters."""
    text = str(value)
    return text if text and PLAIN.issuperset(text) else json.dumps(text)
