"""Draw the dashboard without Grafana: `python -m tests.deploy.draw_dashboard docs/dashboard.png`.

Reads the panels from the dashboard's file, asks a real Prometheus, which has watched a real
loopguard under load, the queries that Grafana would ask, draws what it answers on a page of its
own and takes a picture of that with Debian's chromium. Takes some three minutes.
"""

import asyncio
import contextlib
import math
import re
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.deploy import dashboard, panels
from tests.deploy.dashboard import Panel
from tests.deploy.panels import Series
from tests.deploy.watched import Watched, watched

WATCH_S = 150
RATE_S = 12
STEP_S = 3
REST_S = 0.6

WIDTH_PX = 1400
ROW_PX = 31
GAP_PX = 6
COLUMN_PX = WIDTH_PX / 24

STYLE = f"""
body {{ margin: 0; background: #eef1f4; font: 12px/1.35 "DejaVu Sans", sans-serif; color: #1f2933;
  width: {WIDTH_PX}px; position: relative }}
section {{ position: absolute; background: #fff; border: 1px solid #d5dbe1; border-radius: 4px;
  box-sizing: border-box; padding: 6px 10px; overflow: hidden }}
h1 {{ position: absolute; margin: 0; padding: 9px 4px 0; font-size: 14px; color: #3e4c59 }}
h2 {{ margin: 0 0 4px; font-size: 12.5px; font-weight: 600 }}
svg line {{ stroke: #e4e8ec }} svg text {{ font-size: 10.5px; fill: #52606d }}
.legend {{ height: 36px; overflow: hidden; font-size: 10.5px; color: #3e4c59 }}
.legend span {{ margin-right: 12px; white-space: nowrap; display: inline-block }}
.legend i {{ display: inline-block; width: 12px; height: 4px; margin-right: 5px;
  vertical-align: middle; border-radius: 2px }}
.stat {{ font-size: 32px; text-align: center; padding-top: 18px }}
.empty {{ color: #9aa5b1; text-align: center; padding-top: 40px }}
table {{ border-collapse: collapse; width: 100%; font-size: 12.5px }}
th {{ text-align: right; font-weight: 600; color: #52606d; padding: 4px 14px }}
td {{ text-align: right; padding: 5px 14px; border-top: 1px solid #e4e8ec }}
th:first-child, td:first-child {{ text-align: left }}
.gauge td {{ border: 0; padding: 4px 6px; white-space: nowrap }} .gauge .bar {{ width: 65% }}
.gauge b {{ display: block; height: 16px; background: #3f7fbf; border-radius: 2px }}
"""


def name_of(legend: str, labels: dict[str, str]) -> str:
    """The legend of a series: its template with the labels put in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), legend)


def size_of(panel: Panel) -> tuple[int, int]:
    """Width and height that are left for a chart, in pixels."""
    _, _, width, height = panel.place
    return round(width * COLUMN_PX) - GAP_PX - 22, height * ROW_PX - GAP_PX - 72


async def body_of(panel: Panel, prometheus: Watched, end_s: float) -> str:
    """What a panel shows."""
    if panel.kind == "timeseries":
        return await chart_of(panel, prometheus, end_s)
    answers = [
        await prometheus.query(dashboard.filled(target["expr"], WATCH_S, RATE_S))
        for target in panel.targets
    ]
    defaults = panel.json["fieldConfig"]["defaults"]
    match panel.kind:
        case "stat":
            value = float(answers[0][0]["value"][1])
            colour = panels.colour_of(value, defaults["thresholds"]["steps"])
            text = panels.figure(value, panel.unit, defaults.get("decimals"))
            return f'<div class="stat" style="color:{colour}">{text}</div>'
        case "bargauge":
            legend = panel.targets[0]["legendFormat"]
            named = [(name_of(legend, one["metric"]), float(one["value"][1])) for one in answers[0]]
            return panels.gauge([(name, value) for name, value in named if value], panel.unit)
        case "table":
            return table_of(panel, answers)
        case kind:
            raise ValueError(f"no way to draw a {kind}")


async def chart_of(panel: Panel, prometheus: Watched, end_s: float) -> str:
    """A chart over the whole time, and its legend; a series of zeros is left out of it."""
    series = []
    for target in panel.targets:
        expression = dashboard.filled(target["expr"], WATCH_S, RATE_S)
        begin_s = end_s - WATCH_S + 2 * RATE_S
        for one in await prometheus.query_range(expression, begin_s, end_s, STEP_S):
            points = [(float(at), float(value)) for at, value in one["values"]]
            finite = [(at, value) for at, value in points if math.isfinite(value)]
            series.append(Series(name_of(target["legendFormat"], one["metric"]), finite))
    shown = [one for one in series if any(value for _, value in one.points)] or series
    custom = panel.json["fieldConfig"]["defaults"]["custom"]
    drawn = panels.chart(
        shown,
        size_of(panel),
        panel.unit,
        stacked=custom["stacking"]["mode"] == "normal",
        bars=custom["drawStyle"] == "bars",
    )
    return drawn + panels.legend([one.name for one in shown])


def table_of(panel: Panel, answers: list) -> str:
    """The answers joined by the label that they have in common, as Grafana merges them."""
    merge = panel.json["transformations"][1]["options"]["renameByName"]
    key = next(name for name in merge if not name.startswith("Value"))
    properties = {
        override["matcher"]["options"]: {one["id"]: one["value"] for one in override["properties"]}
        for override in panel.json["fieldConfig"]["overrides"]
    }
    heads = [merge[f"Value #{target['refId']}"] for target in panel.targets]
    cells = [{one["metric"][key]: float(one["value"][1]) for one in answer} for answer in answers]
    sorted_by = heads.index(panel.json["options"]["sortBy"][0]["displayName"])
    rows = []
    for name in sorted(cells[0], key=lambda name: -cells[sorted_by].get(name, 0.0)):
        row = [name]
        for head, column in zip(heads, cells, strict=True):
            asked = properties[head]
            row.append(
                panels.figure(column[name], asked["unit"], asked.get("decimals"))
                if name in column
                else ""
            )
        rows.append(row)
    return panels.table([merge[key], *heads], rows)


async def page_of(prometheus: Watched) -> tuple[str, int]:
    """The whole dashboard as HTML, and its height in pixels."""
    end_s = time.time()
    pieces = []
    bottom = 0
    for panel in dashboard.panels():
        left, top, width, height = panel.place
        bottom = max(bottom, (top + height) * ROW_PX)
        at = f"left:{left * COLUMN_PX + GAP_PX / 2:.0f}px;top:{top * ROW_PX}px"
        if panel.kind == "row":
            pieces.append(f'<h1 style="{at}">{escape(panel.title)}</h1>')
            continue
        size = f"width:{width * COLUMN_PX - GAP_PX:.0f}px;height:{height * ROW_PX - GAP_PX}px"
        body = await body_of(panel, prometheus, end_s)
        pieces.append(
            f'<section style="{at};{size}"><h2>{escape(panel.title)}</h2>{body}</section>'
        )
    head = f'<!doctype html><meta charset="utf-8"><title>loopguard</title><style>{STYLE}</style>'
    return f"{head}<body>{''.join(pieces)}</body>", bottom


def photograph(page: Path, height_px: int, picture: Path, folder: Path) -> None:
    """Take a picture of a page with a chromium that asks nobody for anything."""
    switches = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync hide-scrollbars force-device-scale-factor=1"
    )
    subprocess.run(
        [
            "chromium",
            *(f"--{switch}" for switch in switches.split()),
            f"--user-data-dir={folder}/chromium",
            f"--window-size={WIDTH_PX},{height_px}",
            f"--screenshot={picture.absolute()}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )


async def draw(picture: Path) -> None:
    """Watch for a while, then draw."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        async with watched(folder, REST_S) as prometheus:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), WATCH_S)
            text, height_px = await page_of(prometheus)
        page = folder / "page.html"
        page.write_text(text, "utf-8")
        photograph(page, height_px, picture, folder)


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1])))
