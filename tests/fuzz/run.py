"""Let atheris look for bytes that break a target: ``python -m tests.fuzz.run [seconds] [target]``.

Runs each target of `tests.fuzz.targets` for so many seconds (60), one after another, guided by the
branches of loopguard that an input reaches. Atheris is in the extra `fuzz`. An input that breaks a
target is kept in the folder that is printed, and the exit status is 1; what is found goes into the
property tests. New inputs that reached something are kept below `LOOPGUARD_FUZZ`
(`~/.cache/loopguard-fuzz`), where the next run begins.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

LONGEST_BYTES = 16_384
SLOWEST_S = 5


def fuzz(target: str, words: list[str]) -> None:
    """Be the process that libFuzzer takes over; it does not return."""
    with atheris.instrument_imports(include=["loopguard"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - instrumented as it is imported

    atheris.Setup([sys.argv[0], *words], TARGETS[target])
    atheris.Fuzz()


def seeded(folder: Path, target: str) -> None:
    """Put the inputs that every run begins with where libFuzzer finds them."""
    from tests.fuzz.targets import WORDS, seeds  # noqa: PLC0415 - not before it is instrumented

    (folder / target).mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (folder / target / f"seed-{number}").write_bytes(seed)
    lines = (
        "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass"))
        for word in WORDS
    )
    (folder / "words").write_text("".join(f'"{line}"\n' for line in lines))


def run(target: str, seconds: int, folder: Path, broken: Path) -> bool:
    """Fuzz one target in a process of its own, print what it came to, tell whether it held."""
    seeded(folder, target)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.run", "--be", target),
            *(str(folder / target), f"-max_total_time={seconds}", f"-max_len={LONGEST_BYTES}"),
            *(f"-timeout={SLOWEST_S}", f"-dict={folder / 'words'}", f"-artifact_prefix={broken}/"),
            "-print_final_stats=1",
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    inputs = re.search(r"stat::number_of_executed_units: (\d+)", ended.stderr)
    branches = re.findall(r" cov: (\d+)", ended.stderr)
    print(
        f"{target}: {inputs[1] if inputs else 'no'} inputs in {seconds} s, "
        f"{branches[-1] if branches else 'no'} branches reached, "
        f"{'held' if ended.returncode == 0 else 'broken'}",
        flush=True,
    )
    if ended.returncode:
        print(ended.stderr[-4000:], f"\nits input: {broken}")
    return ended.returncode == 0


def main() -> int:
    """Fuzz."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("seconds", type=int, nargs="?", default=60)
    parser.add_argument("target", nargs="*", default=["framing", "reading", "planning"])
    arguments = parser.parse_args()
    folder = Path(os.environ.get("LOOPGUARD_FUZZ", Path.home() / ".cache" / "loopguard-fuzz"))
    broken = Path(tempfile.mkdtemp(prefix="loopguard-fuzz-"))
    held = [run(target, arguments.seconds, folder, broken) for target in arguments.target]
    return 0 if all(held) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be"]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
