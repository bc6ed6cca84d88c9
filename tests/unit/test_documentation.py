"""The documentation keeps up with the settings, and its links lead somewhere."""

import json
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from loopguard import settings

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "config" / "loopguard.toml"
ROW = re.compile(r"\| `([\w.]+)` \| (.+?) \| .+ \| (.+?) \|")


def declared(table: type[BaseModel], *path: str) -> Iterator[str]:
    """The dotted key of every setting; NAME for the name of a profile."""
    for name, field in table.model_fields.items():
        inner = [
            part
            for part in (field.annotation, *typing.get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, BaseModel)
        ]
        if not inner:
            yield ".".join((*path, name))
        for part in inner:
            below = (name, "NAME") if typing.get_origin(field.annotation) is dict else (name,)
            yield from declared(part, *path, *below)


SETTINGS = tuple(declared(settings._Tree))


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[str, str]]:
    """The default and the variable that the documentation gives for each setting."""
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    return {key: (default, variable) for key, default, variable in ROW.findall(text)}


def shipped(key: str) -> object:
    """What the shipped file says for a setting; NAME is its default profile."""
    value: object = tomllib.loads(SHIPPED.read_text("utf-8"))
    for part in key.replace("NAME", "default").split("."):
        value = value[part]
    return value


def test_layout_names_every_module():
    """The design's layout names every module of the package, and none that is not there."""
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    layout = text.partition("## Layout")[2].partition("Imports only go down")[0]
    modules = {path.name for path in (ROOT / "loopguard").rglob("*.py")}
    named = set(re.findall(r"[\w]+\.py", layout))
    assert named - {"__init__.py"} == {name for name in modules if not name.startswith("__")}


def test_settings_are_found():
    """The walk over the settings reaches tables, profiles, the detector and routes."""
    assert {
        "server.port",
        "routes.model",
        "profiles.NAME.relay",
        "profiles.NAME.loop_detection.window_words",
    } <= set(SETTINGS)


@pytest.mark.parametrize("key", SETTINGS)
def test_documented(rows, key):
    """A setting is documented with the default that is shipped and with its variable."""
    if key.startswith("routes."):
        assert rows[key] == ("none", "none")
    else:
        variable = f"`LOOPGUARD_{key.upper().replace('.', '__')}`"
        assert rows[key] == (f"`{json.dumps(shipped(key))}`", variable)


def test_nothing_else_is_documented(rows):
    """What is documented as a setting is one."""
    assert rows.keys() == set(SETTINGS)


def test_shipped_file_comments():
    """Every line that sets something says what it sets, once for all profiles."""
    lines = SHIPPED.read_text("utf-8").partition("[profiles.document]")[0].splitlines()
    bare = [line for line in lines if re.match(r"\w+ = ", line) and "  # " not in line]

    assert bare == ["routes = []"]
    assert lines[lines.index("routes = []") - 1].startswith("# ")


def test_example_refusal(tmp_path):
    """The refusal that the documentation shows is the one that is given."""
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    shown = text.rstrip().splitlines()[-1].strip()
    path = tmp_path / "loopguard.toml"
    path.write_text(
        "[profiles.default]\n[profiles.implementer.loop_detection]\nenabled = true\n"
        "window_words = 256\nrepeat_threshold = 32\nmin_saturated_run = 3000\n"
        "max_response_chars = 250000\n"
    )

    with pytest.raises(settings.ConfigurationError) as refused:
        settings.load(path, {})

    assert refused.value.faults == (shown,)


def test_threats_have_their_tests():
    """Every threat names a test, and every test that is named is there."""
    text = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    _, _, threats = text.partition("## Threats")
    rows = [line for line in threats.partition("## What was tried")[0].splitlines() if "|" in line]
    threats_told = [row for row in rows if not row.startswith(("| threat |", "|---"))]
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)

    assert len(threats_told) > 40
    assert [row for row in threats_told if "::test_" not in row] == []
    assert [
        (path, test)
        for path, test in named
        if not re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    ] == []


def test_links():
    """A link from one document to another, or to a file, leads to something that is there."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    links = {
        (document.parent / target).resolve()
        for document in documents
        for target in re.findall(r"\]\((?!https:)([^)#]+)", document.read_text("utf-8"))
    }

    assert ROOT / "docs" / "design.md" in links
    assert not [link for link in links if not link.exists()]
