"""The cores that a process may use."""

import os
from pathlib import Path

import pytest

from loopguard.cores import usable_cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("50000 100000\n", 1),
        ("150000 100000\n", 2),
        ("900000 100000\n", 4),
        ("max 100000\n", 4),
        ("none\n", 4),
    ],
)
def test_a_containers_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    """Of four cores so many are usable as the container has time for, and one at the least."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(quota, "ascii")
    assert usable_cores(tmp_path / "cpu.max") == cores


def test_without_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit all cores that the process is bound to are usable."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert usable_cores(tmp_path / "absent") == 2
