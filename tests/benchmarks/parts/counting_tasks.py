"""`loopguard`, which on SIGUSR1 writes to the file `TASKS_FILE` how many tasks it has."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from loopguard.cli import main


def write_tasks(*_: object) -> None:
    """Write the number, and only then let the file be seen."""
    told = Path(os.environ["TASKS_FILE"])
    written = told.with_suffix(".new")
    written.write_text(str(len(asyncio.all_tasks())))
    written.rename(told)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, write_tasks)
    sys.exit(main())
