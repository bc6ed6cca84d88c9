"""What all tests stand on, and the databases that the ledger is tested on."""

import os
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from loopguard.billing import writer
from tests.postgres import binaries, postgres

# The same examples in every run, however slow the machine is: what is landed does not hang on
# chance. `--hypothesis-profile default` tries others, `--hypothesis-seed` with it names them.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def configures(name: str) -> bool:
    """Whether a variable tells loopguard, or a client that it is asked by, what to do."""
    return (
        (name.startswith("LOOPGUARD_") and "__" in name)
        or name.startswith(("OTEL_", "OPENAI_", "ANTHROPIC_"))
        or name.upper().endswith("_PROXY")
    )


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory):
    """Nothing configures what is tested but its test; ledgers are the tests' own, and patient."""
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(configures, tuple(os.environ)):
            patch.delenv(name)
        patch.setenv("STATE_DIRECTORY", str(tmp_path_factory.mktemp("state")))
        # A disk that others write to takes its time; what is recorded is there all the same.
        patch.setattr(writer, "PATIENCE_S", 60.0)
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
