"""The command line: a table of commands, each in a module that is imported when it is asked for.

A command's module has ``add_arguments(parser)`` and ``run(arguments) -> int``, the exit status.
Status 2 says that loopguard was told something it refuses, on the command line or in the
configuration; asking again without a change is useless. Any other failure is status 1, and so is
what ``scan`` was asked to find. A command that Ctrl-C ends, and one whose output nobody reads any
longer, have the status that a shell gives to a program that the signal ended.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

REFUSED = 2
"""argparse's own status for a wrong command line, so that both refusals look the same."""

_SIGNALLED = 128
"""A shell's status for a program that a signal ended is this and the signal's number."""


class Command(NamedTuple):
    """Where a command lives, and what its line of the help says."""

    module: str
    summary: str


COMMANDS = {
    "serve": Command("loopguard.serve", "serve callers until SIGTERM, then drain"),
    "check-config": Command(
        "loopguard.check_config", "judge the configuration and print what it comes to"
    ),
    "healthcheck": Command("loopguard.healthcheck", "ask a running loopguard whether it is well"),
    "ledger": Command("loopguard.ledger_command", "show what was discarded and what it cost"),
    "scan": Command("loopguard.scan.command", "judge saved replies, and draw how near each came"),
    "demo": Command("loopguard.demo", "show two loops cut, without a key or a network"),
    "runaway": Command("loopguard.runaway", "serve a fake model that loops"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name; None takes those of the process.

    Returns:
        The exit status.
    """
    try:
        status = _run(argv)
        sys.stdout.flush()  # else a reader who has left is met on the way out
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGNALLED + signal.SIGPIPE
    return status


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="loopguard",
        description="A reverse proxy that cuts looping model replies mid-stream and asks again.",
        epilog="\n".join(f"  {name:<14}{command.summary}" for name, command in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"loopguard {version('loopguard')}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)

    command = COMMANDS[asked.command]
    # Imported here, where Ctrl-C is met: the imports are most of what a short command takes.
    refusal = import_module("loopguard.settings").ConfigurationError
    module = import_module(command.module)
    own_parser = argparse.ArgumentParser(
        prog=f"loopguard {asked.command}", description=module.__doc__
    )
    module.add_arguments(own_parser)
    arguments = own_parser.parse_args(asked.words)
    try:
        status: int = module.run(arguments)
    except refusal as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)  # noqa: T201  the answer to a person, not a log line
        return REFUSED
    return status
