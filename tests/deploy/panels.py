"""Panels of the dashboard as pieces of a page: simple charts in SVG, tables in HTML."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import TypeAlias

PALETTE = (
    "#3f7fbf",
    "#d9822b",
    "#3a9b6e",
    "#b8475b",
    "#7d62b3",
    "#a58a2a",
    "#2f9aa8",
    "#8a6d5b",
    "#cc6aa5",
    "#6b7785",
)
"""Told apart by most people, on white."""

_AXIS_PX = 52
_TIMES_PX = 18
_TOP_PX = 8
_RIGHT_PX = 6
_TICKS = 4

Figures: TypeAlias = dict[float, float]
"""The figure of each second since 1970."""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: for the legend.
        points: seconds since 1970, and the figure then.
    """

    name: str
    points: Sequence[tuple[float, float]]


def figure(value: float, unit: str | None, decimals: int | None = None) -> str:
    """A figure as people read it.

    Args:
        value: the figure.
        unit: Grafana's name of it.
        decimals: how many the panel asks for; None for what the size suggests.
    """
    match unit:
        case "percentunit":
            return f"{100 * value:.{1 if decimals is None else decimals}f} %"
        case "currencyUSD":
            return f"${value:,.{(2 if value >= 1 else 3) if decimals is None else decimals}f}"
        case "s":
            short = abs(value) < 1
            return f"{1000 * value:.3g} ms" if short and value else f"{value:.3g} s"
        case "bytes":
            return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB"))
        case "reqps":
            return f"{_scaled(value, 1000, ('', 'K', 'M'))}/s"
        case _ if decimals is not None and abs(value) < 100_000:
            return f"{value:,.{decimals}f}"
        case _:
            return _scaled(value, 1000, ("", "K", "M", "G"))


def _scaled(value: float, step: int, names: Sequence[str]) -> str:
    index = 0
    while abs(value) >= step and index < len(names) - 1:
        value /= step
        index += 1
    return f"{value:.3g} {names[index]}".rstrip()


def _ceiling(value: float) -> float:
    """The next round figure above."""
    if value <= 0:
        return 1.0
    magnitude = 10 ** math.floor(math.log10(value))
    return next(nice * magnitude for nice in (1, 2, 4, 5, 8, 10) if nice * magnitude >= value)


@dataclass(frozen=True)
class _Frame:
    """Where a chart's figures lie, in pixels."""

    width: int
    height: int
    begin_s: float
    end_s: float
    ceiling: float

    def x(self, at_s: float) -> float:
        share = (at_s - self.begin_s) / (self.end_s - self.begin_s)
        return _AXIS_PX + (self.width - _AXIS_PX - _RIGHT_PX) * share

    def y(self, value: float) -> float:
        bottom = self.height - _TIMES_PX
        return bottom - (bottom - _TOP_PX) * value / self.ceiling

    def axes(self, unit: str | None) -> Iterator[str]:
        for tick in range(_TICKS + 1):
            value = self.ceiling * tick / _TICKS
            y = self.y(value)
            yield f'<line x1="{_AXIS_PX}" x2="{self.width - _RIGHT_PX}" y1="{y:.1f}" y2="{y:.1f}"/>'
            text = figure(value, unit)
            yield f'<text x="{_AXIS_PX - 5}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        for share in (0.1, 0.5, 0.9):
            at_s = self.begin_s + share * (self.end_s - self.begin_s)
            clock = datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")
            where = f'x="{self.x(at_s):.1f}" y="{self.height - 3}"'
            yield f'<text {where} text-anchor="middle">{clock}</text>'


def chart(
    series: Sequence[Series],
    size: tuple[int, int],
    unit: str | None,
    *,
    stacked: bool,
    bars: bool,
) -> str:
    """Lines, stacked areas or stacked bars over time.

    Args:
        series: of the same times.
        size: width and height in pixels.
        unit: of the axis.
        stacked: whether they are added up.
        bars: whether each time is a bar.
    """
    times = sorted({at_s for one in series for at_s, _ in one.points})
    if len(times) < 2:
        return '<p class="empty">no figures</p>'
    tops = _stacked(series, times) if stacked else [dict(one.points) for one in series]
    highest = max(value for top in tops for value in top.values())
    frame = _Frame(*size, times[0], times[-1], _ceiling(highest))
    drawn = [*frame.axes(unit)]
    below: Figures = dict.fromkeys(times, 0.0)
    for number, top in enumerate(tops):
        draw = _bars if bars else _area if stacked else _line
        drawn.append(draw(frame, top, below, PALETTE[number % len(PALETTE)]))
        if stacked:
            below = top
    return f'<svg width="{frame.width}" height="{frame.height}">{"".join(drawn)}</svg>'


def _line(frame: _Frame, top: Figures, _: Figures, colour: str) -> str:
    points = " ".join(f"{frame.x(at_s):.1f},{frame.y(top[at_s]):.1f}" for at_s in sorted(top))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _area(frame: _Frame, top: Figures, below: Figures, colour: str) -> str:
    there = [f"{frame.x(at_s):.1f},{frame.y(top[at_s]):.1f}" for at_s in sorted(top)]
    back = [f"{frame.x(at_s):.1f},{frame.y(below[at_s]):.1f}" for at_s in sorted(top)[::-1]]
    filled = f'<polygon points="{" ".join(there + back)}" fill="{colour}" opacity=".35"/>'
    return filled + _line(frame, top, below, colour)


def _bars(frame: _Frame, top: Figures, below: Figures, colour: str) -> str:
    wide = max((frame.width - _AXIS_PX) / len(top) - 1, 1)
    drawn = []
    for at_s, value in top.items():
        left, y = max(frame.x(at_s) - wide / 2, _AXIS_PX), frame.y(value)
        height = frame.y(below[at_s]) - y
        drawn.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height:.1f}" '
            f'fill="{colour}"/>'
        )
    return "".join(drawn)


def _stacked(series: Sequence[Series], times: Sequence[float]) -> list[Figures]:
    tops, sums = [], dict.fromkeys(times, 0.0)
    for one in series:
        points = dict(one.points)
        sums = {at: sums[at] + points.get(at, 0.0) for at in times}
        tops.append(sums)
    return tops


def legend(names: Sequence[str]) -> str:
    """The names of a chart's series in their colours."""
    keys = (
        f'<span><i style="background:{PALETTE[number % len(PALETTE)]}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def gauge(figures: Sequence[tuple[str, float]], unit: str | None) -> str:
    """Names with a bar each, the largest over the whole width."""
    largest = max((value for _, value in figures), default=0) or 1
    rows = (
        f'<tr><td>{escape(name)}</td><td class="bar"><b style="width:{100 * value / largest:.1f}%">'
        f"</b></td><td>{figure(value, unit, 0)}</td></tr>"
        for name, value in sorted(figures, key=lambda named: -named[1])
    )
    return f'<table class="gauge">{"".join(rows)}</table>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is names and whose others are figures."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def colour_of(value: float, steps: Sequence[dict]) -> str:
    """The colour of a figure between thresholds: the last one that it reaches."""
    named = {"green": "#2e8b57", "orange": "#d9822b", "red": "#c0392b", "text": "#1f2933"}
    assert all((one["value"] or 0) <= other["value"] for one, other in pairwise(steps))
    reached = [step for step in steps if step["value"] is None or value >= step["value"]]
    return named[reached[-1]["color"]]
