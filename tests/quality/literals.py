"""Repetitive texts that a model rightly writes: generated, of realistic and of growing size."""

import base64
import random
import struct
import sysconfig
from collections.abc import Callable
from pathlib import Path

NAMES = ("Anna", "Bela", "Chen", "Dora", "Emil", "Fritz", "Gita", "Hugo", "Ines", "Jona", "Karl")
STREETS = ("Oak", "Elm", "Mill", "Lake", "Hill", "Park", "Main", "High", "Church", "Station")


def source() -> str:
    """A page of ordinary code and prose."""
    return (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_text()


def rng(kind: str) -> random.Random:
    return random.Random(kind)


def tilemap(side: int, ids: str = "0001112") -> str:
    drawn = rng("tilemap")
    rows = (", ".join(drawn.choice(ids) for _ in range(side)) for _ in range(side))
    return "const level = [\n  " + ",\n  ".join(rows) + "\n];\n"


def tile_rows(side: int) -> str:
    """A level as a designer draws it: walls around, floor within, a few things on it."""
    drawn = rng("tile rows")
    rows = []
    for y in range(side):
        row = [1 if y in (0, side - 1) or x in (0, side - 1) else 0 for x in range(side)]
        for _ in range(3):
            row[drawn.randrange(side)] = drawn.randrange(2, 5)
        rows.append("  [" + ", ".join(map(str, row)) + "]")
    return "const level = [\n" + ",\n".join(rows) + "\n];\n"


def zero_grid(side: int) -> str:
    row = "[" + ", ".join("0" for _ in range(side)) + "]"
    return "grid = [\n    " + ",\n    ".join(row for _ in range(side)) + ",\n]\n"


def ascii_map(side: int) -> str:
    drawn = rng("map")
    rows = ("".join(drawn.choices(".#~", (30, 3, 1), k=side)) for _ in range(side))
    return "```\n" + "\n".join(rows) + "\n```\n"


def csv(rows: int) -> str:
    drawn = rng("csv")
    lines = (
        f"{row},{drawn.choice(NAMES)},{drawn.uniform(0, 90):.2f},active,"
        f"2024-{drawn.randrange(1, 13):02d}-{drawn.randrange(1, 29):02d}\n"
        for row in range(1, rows + 1)
    )
    return "id,name,score,state,since\n" + "".join(lines)


def csv_constant(rows: int) -> str:
    drawn = rng("csv constant")
    lines = (
        f"{row},sensor-north-wing,{drawn.uniform(18, 24):.1f},degrees Celsius,ok\n"
        for row in range(1, rows + 1)
    )
    return "row,sensor,value,unit,state\n" + "".join(lines)


def sql(rows: int) -> str:
    drawn = rng("sql")
    return "".join(
        "INSERT INTO customers (id, first_name, city, credit, active) VALUES "
        f"({row}, '{drawn.choice(NAMES)}', '{drawn.choice(STREETS)}ville', "
        f"{drawn.randrange(100, 9000)}, true);\n"
        for row in range(1, rows + 1)
    )


def sql_numbered(rows: int) -> str:
    return "".join(
        f"INSERT INTO users (id, name, email) VALUES ({n}, 'user{n}', 'user{n}@example.com');\n"
        for n in range(1, rows + 1)
    )


def log_lines(lines: int) -> str:
    drawn = rng("log")
    return "".join(
        f"2024-03-12T06:{line // 60 % 60:02d}:{line % 60:02d}Z INFO worker-{drawn.randrange(4)} "
        f"request served in {drawn.randrange(5, 900)} ms status=200\n"
        for line in range(lines)
    )


def json_records(rows: int) -> str:
    drawn = rng("json")
    items = (
        f'  {{\n    "id": {row},\n    "name": "{drawn.choice(NAMES)} {drawn.choice(STREETS)}",\n'
        f'    "quantity": {drawn.randrange(1, 50)},\n    "in_stock": true,\n    "tags": []\n  }}'
        for row in range(1, rows + 1)
    )
    return "[\n" + ",\n".join(items) + "\n]\n"


def hex_dump(size: int) -> str:
    drawn = rng("hex")
    data = b"".join(
        struct.pack("<IIHHI", drawn.randrange(2**16), 0, drawn.randrange(4), 0, 0)
        for _ in range(size // 60)
    )
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' ')}  |{shown}|\n")
    return "".join(lines)[:size]


def base64_image(size: int) -> str:
    """A bitmap of plain areas and a little noise, as base64 in one run."""
    drawn = rng("image")
    pixels = bytearray(b"BM" + bytes(52))
    while len(pixels) < size * 3 // 4:
        colour = bytes(drawn.randrange(256) for _ in range(3))
        pixels += colour * drawn.choice((3, 20, 80, 400))
        pixels += bytes(drawn.randrange(256) for _ in range(drawn.choice((3, 9, 30))))
    return base64.b64encode(bytes(pixels))[:size].decode()


def base64_lines(size: int) -> str:
    whole = base64_image(size)
    return "\n".join(whole[at : at + 76] for at in range(0, len(whole), 76)) + "\n"


def svg(lines: int) -> str:
    drawn = rng("svg")
    points = (f"L {drawn.uniform(0, 400):.1f} {drawn.uniform(0, 400):.1f}\n" for _ in range(lines))
    return '<path d="M 0 0\n' + "".join(points) + 'Z" fill="none"/>\n'


def palette(entries: int) -> str:
    drawn = rng("palette")
    return "".join(
        f'  {{ name: "colour-{n}", value: "#{drawn.randrange(2**24):06x}" }},\n'
        for n in range(entries)
    )


def table(rows: int) -> str:
    drawn = rng("table")
    return "| Item | Count | Remark |\n|---|---|---|\n" + "".join(
        f"| {drawn.choice(NAMES)} {drawn.choice(STREETS)} {row} | {drawn.randrange(500)} "
        "| checked by the night shift and found in order |\n"
        for row in range(rows)
    )


def table_numbered(rows: int) -> str:
    drawn = rng("table numbered")
    return "| Row | Count | Remark |\n|---|---|---|\n" + "".join(
        f"| {row} | {drawn.randrange(500)} | checked by the night shift and found in order |\n"
        for row in range(rows)
    )


def file_twice(chars: int) -> str:
    first = source()[:chars]
    fixed = first.replace("self._name", "self.name").replace("None:", "None :")
    return f"Here it is:\n```python\n{first}\n```\nCorrected:\n```python\n{fixed}\n```\n"


def lyrics(choruses: int) -> str:
    chorus = (
        "Carry me over the river, carry me home,\nwhere the lamps are lit and the dogs all roam,\n"
        "carry me over, carry me slow,\nthere is one more mile and a field of snow.\n\n"
    ) * 2
    drawn = rng("lyrics")
    words = source().split()
    song = ""
    for number in range(choruses):
        verse = "\n".join(" ".join(drawn.sample(words, 6)) for _ in range(8))
        song += f"Verse {number + 1}\n{verse}\n\nChorus\n{chorus}"
    return song


def lines_asked(times: int) -> str:
    return "I will not draw on the walls of the school.\n" * times


def numbered_lines_asked(times: int) -> str:
    return "".join(f"{n}. I will not draw on the walls of the school.\n" for n in range(1, times))


def directions(steps: int) -> str:
    drawn = rng("directions")
    return "".join(
        f"{step}. Turn {drawn.choice(('left', 'right'))} onto {drawn.choice(NAMES)} "
        f"{drawn.choice(STREETS)} Street and follow it for {drawn.randrange(1, 90) / 10} miles.\n"
        for step in range(1, steps + 1)
    )


def config_lines(lines: int) -> str:
    drawn = rng("config")
    return "".join(
        f"server.pool.worker{n}.limits.max_open_files = {drawn.choice((1024, 4096, 65536))}\n"
        for n in range(lines)
    )


def unit_tests(count: int) -> str:
    drawn = rng("tests")
    return "".join(
        f"def test_parses_{drawn.choice(NAMES).lower()}_{n}():\n"
        f'    result = parse("{drawn.choice(STREETS)} {drawn.randrange(999)}")\n'
        f'    assert result.street == "{drawn.choice(STREETS)}"\n'
        f"    assert result.number == {drawn.randrange(999)}\n\n"
        for n in range(count)
    )


def times_tables(side: int) -> str:
    return "".join(f"{a} x {b} = {a * b}\n" for a in range(1, side) for b in range(1, side))


def counting(last: int) -> str:
    return "\n".join(map(str, range(1, last + 1))) + "\n"


def subtitles(cues: int) -> str:
    drawn = rng("subtitles")
    words = source().split()
    return "".join(
        f"{n}\n{stamp(2 * n)},000 --> {stamp(2 * n + 1)},900\n"
        f"{' '.join(drawn.sample(words, 7))}\n\n"
        for n in range(1, cues + 1)
    )


def stamp(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def html_rows(rows: int) -> str:
    drawn = rng("html")
    return "".join(
        f'<tr><td class="name">{drawn.choice(NAMES)}</td><td class="num">{drawn.randrange(999)}'
        '</td><td class="state"><span class="badge badge-ok">delivered</span></td></tr>\n'
        for _ in range(rows)
    )


LITERALS: dict[str, tuple[Callable[[int], str], int]] = {
    "tilemap, side": (tilemap, 64),
    "tilemap of 3 ids, side": (lambda side: tilemap(side, "012"), 100),
    "designed level, side": (tile_rows, 100),
    "all-zero grid, side": (zero_grid, 64),
    "character map, side": (ascii_map, 64),
    "CSV, rows": (csv, 1500),
    "CSV with constant columns, rows": (csv_constant, 1500),
    "SQL inserts, rows": (sql, 300),
    "SQL inserts of numbered users, rows": (sql_numbered, 300),
    "log lines": (log_lines, 300),
    "JSON records": (json_records, 150),
    "hex dump, characters": (hex_dump, 20_000),
    "base64 of a bitmap, characters": (base64_image, 40_000),
    "base64 in lines, characters": (base64_lines, 40_000),
    "SVG path, lines": (svg, 400),
    "palette, entries": (palette, 200),
    "table with a shared suffix, rows": (table, 120),
    "table of numbers with a shared suffix, rows": (table_numbered, 120),
    "file printed twice, characters": (file_twice, 12_000),
    "lyrics, choruses": (lyrics, 5),
    "one line asked, times": (lines_asked, 50),
    "numbered line asked, times": (numbered_lines_asked, 50),
    "numbered directions": (directions, 400),
    "configuration lines": (config_lines, 250),
    "unit tests": (unit_tests, 60),
    "multiplication tables, side": (times_tables, 31),
    "counting, last": (counting, 2000),
    "subtitles, cues": (subtitles, 300),
    "HTML rows": (html_rows, 150),
}
"""Kind of literal: how it is made, and a realistic size."""
