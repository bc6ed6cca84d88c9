"""Where tests keep their state, and the databases that the ledger is tested on."""

from itertools import count

import pytest

from tests.postgres import binaries, postgres


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory):
    """Whatever runs here without naming a ledger keeps it in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATE_DIRECTORY", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres_server():
    """A PostgreSQL server for the whole session; skips where the system has none."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql/*/bin)")
    with postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def new_ledger(request, tmp_path):
    """Make an empty database, of each kind in turn; returns its URL."""
    if request.param == "sqlite":
        number = count(1)
        return lambda: f"sqlite:///{tmp_path}/ledger-{next(number)}.db"
    return request.getfixturevalue("postgres_server").empty_database


@pytest.fixture
def ledger_url(new_ledger):
    """The URL of an empty database, of each kind in turn."""
    return new_ledger()
