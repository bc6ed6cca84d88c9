"""The dashboard as Grafana reads it: its panels, and expressions with the variables put in."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards" / "loopguard.json"


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        json: as it stands in the file.
    """

    json: dict[str, Any]

    @property
    def kind(self) -> str:
        """``row``, ``stat``, ``timeseries``, ``table`` or ``bargauge``."""
        return str(self.json["type"])

    @property
    def title(self) -> str:
        """Its heading."""
        return str(self.json["title"])

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Left, top, width and height on a grid of 24 columns."""
        grid = self.json["gridPos"]
        return grid["x"], grid["y"], grid["w"], grid["h"]

    @property
    def targets(self) -> list[dict[str, Any]]:
        """Its queries."""
        return list(self.json.get("targets", ()))

    @property
    def unit(self) -> str | None:
        """Of its figures; a table has one for each column."""
        return self.json["fieldConfig"]["defaults"].get("unit")


def read() -> dict[str, Any]:
    """The file."""
    dashboard: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
    return dashboard


def panels() -> list[Panel]:
    """The panels, rows included, in the order of the file."""
    return [Panel(panel) for panel in read()["panels"]]


def variables() -> Iterator[tuple[str, str]]:
    """The variables that a person chooses from labels: the name of each, and its question."""
    for variable in read()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def filled(expression: str, range_s: int, rate_s: int) -> str:
    """An expression with everything chosen, over so many seconds.

    Args:
        expression: as it stands in the file.
        range_s: the time that is shown.
        rate_s: the shortest over which a rate makes sense: some scrapes.
    """
    for name, _ in variables():
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", f"{rate_s}s").replace("$__range", f"{range_s}s")
