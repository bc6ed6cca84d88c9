"""Try every fault and print the table: ``python -m tests.faults [--write]``.

With ``--write`` the table goes into docs/faults.md. The exit status is 1 where a try was lost.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from tests.faults.table import rows, summed, try_all, written

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN = "<!-- written by `python -m tests.faults --write` -->\n"


def main() -> int:
    """Try, print and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()

    results = asyncio.run(try_all({fault.name for _, fault in rows()}))

    table = "\n".join([summed(results), *written(results)]) + "\n"
    print(table)
    lost = [(name, line) for name, result in results.items() for line in result.lost]
    for name, line in lost:
        print(f"lost: {name}: {line}", file=sys.stderr)
    if arguments.write and not lost:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(page[: page.index(BEGIN)] + BEGIN + "\n" + table, "utf-8")
    return 1 if lost else 0


sys.exit(main())
