"""The operator's file, and a draft of it."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loopguard import console
from loopguard.console.configuration import Change, Configuration, FileChanged, read_changes
from loopguard.settings import SHIPPED, ConfigurationError, load
from tests.console.operated import PROFILE

SECRETS = """
[server]
host = "0.0.0.0"
client_tokens = ["sk-client-secret"]   # sk-comment-secret

[upstream]
api_key = "sk-upstream-secret"

[ledger]
url = "postgresql://me:sk-ledger-secret@host/name"
"""
DEFAULT = ("profiles", "default")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "loopguard.toml"
    path.write_text(SECRETS + PROFILE)
    path.chmod(0o640)
    return path


@pytest.fixture
def configuration(path: Path) -> Configuration:
    return Configuration(path, {})


def refused(configuration: Configuration, *changes: Change) -> list[str]:
    """The lines that a draft is refused with."""
    with pytest.raises(ConfigurationError) as refusal:
        configuration.draft(changes)
    return list(refusal.value.faults)


def test_a_draft_is_refused_in_the_words_of_the_launch(
    configuration: Configuration, path: Path
) -> None:
    """What a draft is refused for is what the launch says of the same file."""
    changes = [
        Change((*DEFAULT, "loop_detection", "min_offenders"), ""),
        Change((*DEFAULT, "loop_detection", "window_words"), "many"),
        Change((*DEFAULT, "relay"), "neither"),
        Change((*DEFAULT, "escape", "steps"), ["pray"]),
        Change(("retry", "max_attempts"), "3.5"),
    ]
    told = refused(configuration, *changes)
    text = path.read_text()
    path.write_text(
        text.replace("min_offenders = 2\n", "")
        .replace("window_words = 256", 'window_words = "many"')
        .replace('relay = "hold"', 'relay = "neither"\nescape.steps = ["pray"]')
        + "[retry]\nmax_attempts = 3.5\n"
    )
    with pytest.raises(ConfigurationError) as at_launch:
        load(path, {})
    assert told == list(at_launch.value.faults)
    assert len(told) == 5


def test_a_draft_keeps_the_operators_words(configuration: Configuration, path: Path) -> None:
    """Only what is changed differs; comments stay, tables and keys that are new are added."""
    draft = configuration.draft(
        [
            Change((*DEFAULT, "stretch_detection", "min_stale_chars"), "4000"),
            Change(("profiles", "unarmed", "loop_detection", "window_words"), "64"),
            Change(("profiles", "unarmed", "channels"), ["content"]),
            Change((*DEFAULT, "log_sample"), True),  # noqa: FBT003 - a switch
        ]
    )
    ours, theirs = draft.text.splitlines(), path.read_text().splitlines()
    assert [line for line in theirs if line not in ours] == [
        "min_stale_chars = 2350       # half a page"
    ]
    assert "min_stale_chars = 4000       # half a page" in ours
    tree = tomllib.loads(draft.text)
    assert tree["profiles"]["default"]["log_sample"] is True
    assert tree["profiles"]["unarmed"] == {
        "channels": ["content"],
        "loop_detection": {"enabled": False, "window_words": 64},
    }
    assert draft.settings.profiles["default"].detection.stretch is not None
    assert draft.settings.profiles["default"].detection.stretch.min_stale_chars == 4000


def test_a_file_of_another_style_is_edited_as_well(tmp_path: Path) -> None:
    """Inline tables, dotted keys and line ends of Windows are kept."""
    path = tmp_path / "x.toml"
    path.write_bytes(
        b'profiles = {default = {relay = "hold"}, other = {}} # inline\r\n'
        b"retry.max_attempts = 2\r\n"
    )
    draft = Configuration(path, {}).draft(
        [
            Change((*DEFAULT, "relay"), "live"),
            Change(("profiles", "other", "escape", "steps"), ["drop_seed"]),
            Change(("retry", "max_attempts"), "3"),
        ]
    )
    assert tomllib.loads(draft.text) == {
        "profiles": {"default": {"relay": "live"}, "other": {"escape": {"steps": ["drop_seed"]}}},
        "retry": {"max_attempts": 3},
    }
    assert "# inline\r\n" in draft.text
    assert draft.text.count("\n") == draft.text.count("\r\n")


@pytest.mark.parametrize(
    "key",
    [
        ("server", "client_tokens"),
        ("upstream", "base_url"),
        ("ledger", "url"),
        ("profiles", "new", "relay"),
        ("profiles", "default", "unheard_of"),
        ("profiles", "default"),
        ("profiles",),
        ("retry", "max_attempts", "more"),
    ],
)
def test_other_keys_cannot_be_changed(configuration: Configuration, key: tuple[str, ...]) -> None:
    """Where secrets stand, where replies come from, and what is no key is not changed here."""
    (line,) = refused(configuration, Change(key, "x"))
    assert line.endswith("not a key that is changed here")


def test_every_key_has_a_field(configuration: Configuration) -> None:
    """Whatever can be tuned is on the page: no key of the form is without a field."""
    knobs = (Path(console.__file__).parent / "static" / "knobs.js").read_text("utf-8")
    form = configuration.form()

    def keys(table: dict[str, Any]) -> set[str]:
        inner = [value for value in table.values() if isinstance(value, dict)]
        return set(table).union(*map(keys, inner))

    wanted = keys(form["profiles"]["default"]) | keys(form["retry"])
    assert "novelty_cost_chars" in wanted
    assert wanted - set(re.findall(r'"([a-z_]+)"', knobs)) == set()


def test_a_key_of_the_environment_is_not_changed(path: Path) -> None:
    """A key that a variable sets is shown with its variable, and refused: the file has no say."""
    variable = "LOOPGUARD_PROFILES__DEFAULT__RELAY"
    configuration = Configuration(path, {variable: "live"})
    form = configuration.form()
    assert form["profiles"]["default"]["relay"] == "live"
    assert form["variables"] == [{"path": (*DEFAULT, "relay"), "variable": variable}]
    assert refused(configuration, Change((*DEFAULT, "relay"), "hold")) == [
        f"profile `default`: relay: set by {variable}, which stands over the file"
    ]


def test_no_secret_is_told(configuration: Configuration, path: Path) -> None:
    """Neither the form, nor a draft's tables, nor a refusal holds a secret of the file."""
    told = [repr(configuration.form())]
    told.append(configuration.draft([Change((*DEFAULT, "relay"), "live")]).tables)
    told += refused(configuration, Change((*DEFAULT, "relay"), "sk-typed-secret"))
    path.write_text(path.read_text().replace("[upstream]", "[upstream"))
    with pytest.raises(ConfigurationError) as refusal:
        configuration.form()
    told += refusal.value.faults
    assert "sk-" not in "".join(told)
    assert tomllib.loads(told[1])["profiles"]["default"]["relay"] == "live"


def test_the_old_file_is_kept_beside_the_new(configuration: Configuration, path: Path) -> None:
    """The new file has the owner and the mode of the old, which is there under another name."""
    before = path.read_text()
    kept = configuration.write(
        [Change((*DEFAULT, "relay"), "live")], configuration.form()["version"]
    )
    assert kept == path.with_name("loopguard.toml.bak")
    assert kept.read_text() == before
    assert load(path, {}).profiles["default"].relay == "live"
    assert [oct(file.stat().st_mode & 0o777) for file in (path, kept)] == ["0o640", "0o640"]
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, kept.name]


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    """Where the operator's path is a link, the file that it leads to is written."""
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    configuration = Configuration(link, {})
    kept = configuration.write(
        [Change((*DEFAULT, "relay"), "live")], configuration.form()["version"]
    )
    assert link.is_symlink()
    assert kept.parent == path.parent
    assert 'relay = "live"' in path.read_text()


def test_what_somebody_else_changed_is_not_overwritten(
    configuration: Configuration, path: Path
) -> None:
    """A draft that was made of another file than is there is not written."""
    version = configuration.form()["version"]
    path.write_text(path.read_text() + "# somebody else\n")
    with pytest.raises(FileChanged):
        configuration.write([Change((*DEFAULT, "relay"), "live")], version)
    assert path.read_text().endswith("# somebody else\n")


def test_what_is_refused_is_not_written(configuration: Configuration, path: Path) -> None:
    """A draft that would not be launched leaves the file and its neighbours as they were."""
    before = path.read_text()
    with pytest.raises(ConfigurationError):
        configuration.write(
            [Change((*DEFAULT, "relay"), "neither")], configuration.form()["version"]
        )
    assert path.read_text() == before
    assert len(list(path.parent.iterdir())) == 1


def test_the_shipped_file_is_not_edited() -> None:
    """The package's own file is shown and tried, and never written."""
    configuration = Configuration(None, {})
    form = configuration.form()
    assert (form["place"], form["writable"]) == (None, False)
    with pytest.raises(PermissionError):
        configuration.write([], form["version"])
    draft = configuration.draft([Change(("retry", "max_attempts"), "2")])
    copied = tomllib.loads(draft.tables)
    assert copied["retry"]["max_attempts"] == 2
    assert copied["profiles"] == tomllib.loads(SHIPPED.read_text())["profiles"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everything")
def test_a_folder_that_cannot_be_written_is_told(configuration: Configuration, path: Path) -> None:
    """Without a right to the folder the file counts as one that is only read."""
    path.parent.chmod(0o555)
    assert not configuration.writable
    path.parent.chmod(0o755)


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        [1],
        [{"path": [], "value": ""}],
        [{"path": ["retry", 1], "value": ""}],
        [{"path": ["retry", "max_attempts"], "value": 3}],
        [{"path": ["retry", "max_attempts"], "value": [1]}],
        [{"path": ["retry", "max_attempts"]}],
    ],
)
def test_changes_of_another_form_are_refused(told: Any) -> None:
    """What is no list of paths and values is refused, whatever it is."""
    with pytest.raises(ConfigurationError):
        read_changes(told)
