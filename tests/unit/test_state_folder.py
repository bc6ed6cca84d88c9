"""Where the ledger is when nobody says where."""

from pathlib import Path

import pytest

from loopguard.app import ledger_url
from loopguard.billing.database import LedgerUrlError
from loopguard.settings import Ledger


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"STATE_DIRECTORY": "/var/lib/loopguard", "XDG_STATE_HOME": "/x"}, "/var/lib/loopguard"),
        ({"XDG_STATE_HOME": "/x"}, "/x/loopguard"),
        ({}, "/home/of/tests/.local/state/loopguard"),
    ],
)
def test_state_folder(environ: dict[str, str], folder: str, monkeypatch) -> None:
    """The ledger is in the service's folder, else in that of the user's states."""
    monkeypatch.setenv("HOME", "/home/of/tests")
    assert ledger_url(Ledger(), environ) == f"sqlite:///{folder}/ledger.db"


def test_homeless_user(monkeypatch) -> None:
    """A user without a home, as a container's often is, needs a folder or a database by name."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert ledger_url(Ledger(), {"STATE_DIRECTORY": "/state"}) == "sqlite:////state/ledger.db"
    with pytest.raises(LedgerUrlError, match="STATE_DIRECTORY"):
        ledger_url(Ledger(), {})
