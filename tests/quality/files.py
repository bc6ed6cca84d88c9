"""Ordinary files of this machine, taken as if a model had written them."""

import os
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

FIRST_CHARS = 60_000
MIN_CHARS = 1_000
"""Shorter files cannot trip."""

ROOTS = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    "/usr/include",
    "/usr/share",
    "/usr/lib/node_modules",
)


def paths() -> list[Path]:
    """All files under the roots, in an order that a newly installed package hardly changes."""
    found: set[str] = set()
    for root in ROOTS:
        for folder, _, names in os.walk(root):
            found |= {f"{folder}/{name}" for name in names}
    ordered = sorted(found, key=lambda path: zlib.crc32(path.encode()))
    return [Path(path) for path in ordered]


def texts(count: int) -> Iterator[tuple[str, str]]:
    """So many files of text with their beginnings, always the same ones."""
    for path in paths():
        if count == 0:
            return
        if path.is_symlink() or not path.is_file():
            continue
        try:
            with path.open(encoding="utf-8") as lines:
                text = lines.read(FIRST_CHARS)
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) >= MIN_CHARS and "\0" not in text:
            count -= 1
            yield str(path), text
