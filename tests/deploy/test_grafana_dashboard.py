"""The dashboard is one that Grafana shows whole: nothing overlaps, nothing is left unexplained."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from tests.deploy import dashboard

PROVISIONING = Path(__file__).parents[2] / "deploy" / "grafana" / "provisioning"
PANELS = dashboard.panels()
SHOWN = [panel for panel in PANELS if panel.kind != "row"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def test_no_overlap():
    """No panel lies on another one or beyond the grid, and no line of it stays empty."""
    for panel in PANELS:
        left, _, width, _ = panel.place
        assert 0 <= left < left + width <= 24, panel.title
    for one, other in combinations(PANELS, 2):
        x, y, width, height = one.place
        left, top, wide, high = other.place
        apart = x + width <= left or left + wide <= x or y + height <= top or top + high <= y
        assert apart, (one.title, other.title)
    lines = {line for panel in PANELS for line in range(panel.place[1], sum(panel.place[1::2]))}
    assert lines == set(range(max(lines) + 1))


def test_ids_and_titles():
    """Every panel has a number and a title of its own."""
    assert len({panel.json["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel.title for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("panel", SHOWN, ids=lambda panel: panel.title)
def test_explained(panel):
    """A panel says what it shows, in which unit, and asks the data source that was chosen."""
    assert panel.json["description"].endswith(".")
    assert panel.targets
    for target in (panel.json, *panel.targets):
        assert target["datasource"] == DATASOURCE
    if panel.kind == "table":
        overrides = panel.json["fieldConfig"]["overrides"]
        units = [
            override["matcher"]["options"]
            for override in overrides
            if override["properties"][0]["id"] == "unit"
        ]
        columns = panel.json["transformations"][1]["options"]["renameByName"]
        asked = [f"Value #{target['refId']}" for target in panel.targets]
        assert units == [columns[name] for name in asked]
    else:
        assert panel.unit


def test_variables_are_defined():
    """Whatever an expression takes from the dashboard is a variable of it, and each is used."""
    expressions = [target["expr"] for panel in PANELS for target in panel.targets]
    used = {name for text in expressions for name in re.findall(r"\$(\w+)", text)}
    chosen = {name for name, _ in dashboard.variables()}
    assert used - {"__range", "__rate_interval"} == chosen == {"profile", "model"}
    for variable in dashboard.read()["templating"]["list"]:
        if variable["type"] == "query":
            assert (variable["datasource"], variable["allValue"]) == (DATASOURCE, ".*")


def test_choice_is_followed():
    """Every series above the ledger's row follows the choice of profile, which all of them have."""
    (ledger,) = (panel.place[1] for panel in PANELS if panel.title == "Ledger")
    asked = [
        target["expr"] for panel in SHOWN if panel.place[1] < ledger for target in panel.targets
    ]
    assert len(asked) > 30
    for expression in asked:
        assert expression.count("loopguard_") == expression.count('{profile=~"$profile"'), (
            expression
        )


def test_provisioning():
    """Grafana finds one data source, and the dashboards in the folder that compose mounts."""
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "loopguard.yml").read_text())[
        "providers"
    ]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert (provider["type"], provider["options"]) == (
        "file",
        {"path": "/var/lib/grafana/dashboards"},
    )
