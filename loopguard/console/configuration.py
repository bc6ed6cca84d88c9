"""The operator's file while somebody edits it: what it says, a draft of it, and writing it.

A draft is the text of the file with some keys changed, its comments kept. It is judged by
`loopguard.settings.judge`, so that what passes here is launched, and only what passes is written.
Only the keys of `retry` and of the profiles can be changed: the others are where secrets stand,
where replies come from, and where loopguard listens. None of those is shown either.
"""

import hashlib
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import tomlkit

from loopguard.core.detection.detector import describe
from loopguard.settings import SHIPPED, ConfigurationError, Settings, Written, judge, written

Json: TypeAlias = dict[str, Any]

_TEXTS = ("relay", "live_trip", "fallback_model")
"""The keys whose value is text; that of any other key is a number, if a person typed it."""

_RULES = ("loop_detection", "stretch_detection")

_whole = re.compile(r"[+-]?[0-9]{1,30}")
_fraction = re.compile(r"[+-]?[0-9]{0,30}\.[0-9]{1,30}")


class Change(NamedTuple):
    """One key as somebody typed it.

    Attributes:
        path: the names of its tables, then its own.
        value: a switch, a list of names, or text; empty text is no value.
    """

    path: tuple[str, ...]
    value: bool | list[str] | str


class Draft(NamedTuple):
    """The file with changes.

    Attributes:
        text: of the whole file.
        settings: what it comes to.
        tables: the tables that can be edited here, as TOML without comments.
    """

    text: str
    settings: Settings
    tables: str


class FileChanged(Exception):
    """The file is no longer what the draft was made of."""


def read_changes(told: object) -> list[Change]:
    """The changes as a page sends them: objects of ``path`` and ``value``.

    Raises:
        ConfigurationError: they are of another form.
    """
    if not isinstance(told, list):
        raise ConfigurationError(["the changes are no list"])
    changes = []
    for each in told:
        match each:
            case {"path": [str(), *_] as path, "value": bool() | str() as value} if _texts(path):
                changes.append(Change(tuple(path), value))
            case {"path": [str(), *_] as path, "value": list() as names} if _texts([*path, *names]):
                changes.append(Change(tuple(path), names))
            case _:
                raise ConfigurationError(["a change has no path or no value that can be read"])
    return changes


def _texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


class Configuration:
    """The file that this process was started with.

    Args:
        path: of it; None is the shipped one, which is not edited.
        environ: stands over it.
    """

    def __init__(self, path: Path | None, environ: Mapping[str, str] = os.environ) -> None:
        self._path = path
        self._environ = environ

    @property
    def writable(self) -> bool:
        """Whether it can be replaced by another file."""
        if self._path is None:
            return False
        path = self._path.resolve()
        return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)

    def form(self) -> Json:
        """What a page needs to edit it.

        Raises:
            ConfigurationError: the file is refused as it stands.
        """
        text = self._text()
        tree = _parse(text)
        settings = judge(tree, self._environ)
        read = written(tree, self._environ)
        return {
            "version": _version(text),
            "place": None if self._path is None else str(self._path),
            "writable": self.writable,
            "retry": read.retry,
            "profiles": read.profiles,
            "variables": [
                {"path": path, "variable": name} for path, name in read.variables.items()
            ],
            "figures": shipped_figures(),
            **told(settings),
        }

    def draft(self, changes: Sequence[Change]) -> Draft:
        """The file with changes, judged.

        Raises:
            ConfigurationError: it is refused, or a key cannot be changed here.
        """
        text = self._text()
        _refuse_fixed(changes, written(_parse(text), self._environ))
        revised = _revised(text, changes)
        tree = _parse(revised)
        tables: Json = {name: tree[name] for name in ("retry", "profiles") if name in tree}
        return Draft(revised, judge(tree, self._environ), tomlkit.dumps(tables))

    def write(self, changes: Sequence[Change], version: str) -> Path:
        """Put the file with changes in its place, and keep the old one beside it.

        Args:
            changes: against what the file says now.
            version: of the file that they were made against, from `form`.

        Returns:
            Where the old one is.

        Raises:
            ConfigurationError: it is refused.
            FileChanged: somebody else has changed it.
            OSError: it cannot be written.
        """
        if self._path is None:
            raise PermissionError("the shipped file is not edited")
        old = self._text()
        if _version(old) != version:
            raise FileChanged
        revised = self.draft(changes).text
        path = self._path.resolve()
        kept = path.with_name(f"{path.name}.bak")
        found = path.stat()
        _put(kept, old, found)
        _put(path, revised, found)
        return kept

    def _text(self) -> str:
        try:
            # Line ends stay as they are.
            return (self._path or SHIPPED).read_bytes().decode("utf-8")
        except OSError as error:
            raise ConfigurationError([f"{self._path}: {error.strerror}"]) from None
        except UnicodeDecodeError:
            raise ConfigurationError([f"{self._path}: not UTF-8"]) from None


def told(settings: Settings) -> Json:
    """What is to say of a configuration that passed."""
    sentences = {name: describe(each.detection) for name, each in settings.profiles.items()}
    return {"warnings": settings.warnings, "sentences": sentences}


def shipped_figures() -> dict[str, Json]:
    """What arming a rule fills in: the figures of the shipped default profile."""
    shipped = written(tomllib.loads(SHIPPED.read_text("utf-8")), {}).profiles["default"]
    return {rule: shipped[rule] for rule in _RULES}


def _parse(text: str) -> Json:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError([f"not readable as TOML: {error}"]) from None


def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refuse_fixed(changes: Iterable[Change], read: Written) -> None:
    """Refuse the keys that cannot be changed here, or to no effect.

    Raises:
        ConfigurationError: naming them.
    """
    faults = []
    for path in (change.path for change in changes):
        named = ".".join(path)
        if path[0] == "profiles" and path[1:]:
            named = f"profile `{path[1]}`: {'.'.join(path[2:])}"
        if not _is_key(path, {"retry": read.retry, "profiles": read.profiles}):
            faults.append(f"{named}: not a key that is changed here")
        elif path in read.variables:
            faults.append(f"{named}: set by {read.variables[path]}, which stands over the file")
    if faults:
        raise ConfigurationError(faults)


def _is_key(path: Sequence[str], tables: object) -> bool:
    for name in path:
        if not isinstance(tables, dict) or name not in tables:
            return False
        tables = tables[name]
    return not isinstance(tables, dict)


def _revised(text: str, changes: Iterable[Change]) -> str:
    document = tomlkit.parse(text)
    for change in changes:
        *tables, key = change.path
        table: Any = document
        for name in tables:
            if name not in table:
                table[name] = {"enabled": False} if name in _RULES else {}
            table = table[name]
        value = _value(key, change.value)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return tomlkit.dumps(document)


def _value(key: str, typed: bool | list[str] | str) -> object:  # noqa: FBT001 - a switch is a value
    """What somebody typed, as TOML takes it; text that is no number stays text, and is refused."""
    if not isinstance(typed, str) or key in _TEXTS:
        return typed
    typed = typed.strip()
    if not typed:
        return None
    if _whole.fullmatch(typed):
        return int(typed)
    return float(typed) if _fraction.fullmatch(typed) else typed


def _put(path: Path, text: str, like: os.stat_result) -> None:
    """Replace a file at once, by one of the same owner and mode."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        with suppress(PermissionError):  # of another owner's file only the mode can be kept
            os.chown(name, like.st_uid, like.st_gid)
        Path(name).chmod(stat.S_IMODE(like.st_mode))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
