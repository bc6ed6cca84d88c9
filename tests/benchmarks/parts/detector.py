"""What the detector costs: microseconds per character, and bytes per channel.

    python -m tests.benchmarks.parts.detector

Processor time of this process, the best of three rounds; nothing is asserted.
"""

import random
import sysconfig
import time
import tracemalloc
from pathlib import Path

from loopguard.core.detection.detector import Detection, Detector
from tests.quality.score import DOCUMENT, SHIPPED, STRETCH_ALONE

CHARS = 240_000
"""Just under the length backstop, so that nothing but the rules ends a text."""

ARMED = {"frequency": DOCUMENT, "stretch": STRETCH_ALONE, "both": SHIPPED}
STDLIB = Path(sysconfig.get_path("stdlib"))


def texts() -> dict[str, str]:
    drawn = random.Random(1)
    written = (STDLIB / "argparse.py").read_text().split()
    words = sorted({word for word in written if word.isalpha()})
    modules = ("argparse.py", "ast.py", "inspect.py")
    rows = (f"{row},{drawn.randrange(999)},{drawn.randrange(99)}.5\n" for row in range(CHARS // 12))
    line = "Now I run it and look at the result.\n"
    return {
        "prose": " ".join(drawn.choices(words, k=CHARS // 5))[:CHARS],
        "code": "".join((STDLIB / name).read_text() for name in modules)[:CHARS],
        "rows of numbers": "".join(rows)[:CHARS],
        "Chinese": "".join(
            chr(0x4E00 + drawn.randrange(3000)) if at % 12 else "\u3002" for at in range(CHARS)
        ),
        "loop, floor raised": (line * (CHARS // len(line) + 1))[:CHARS],
    }


def cost_us(detection: Detection, text: str, size: int) -> float:
    """Microseconds of processor time per character, fed in pieces of the size."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    best = float("inf")
    for _ in range(3):
        detector = Detector(detection, floor_factor=10)
        feed = detector.feed
        began = time.process_time()
        for piece in pieces:
            feed("content", piece)
        spent = time.process_time() - began
        best = min(best, spent / detector.chars * 1e6)
    return best


def memory_bytes(text: str) -> int:
    """What the detector of one channel holds at the end of the text."""
    Detector(SHIPPED).feed("content", text)  # what all channels share is not counted
    tracemalloc.start()
    detector = Detector(SHIPPED, floor_factor=10)
    for at in range(0, len(text), 4):
        detector.feed("content", text[at : at + 4])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


def main() -> None:
    print(
        f"{'text':20} {'armed':10} {'us/char, whole':>15} {'Mchar/s':>8} {'us per delta of 4':>18}"
    )
    for kind, text in texts().items():
        for name, detection in ARMED.items():
            whole = cost_us(detection, text, len(text))
            delta = cost_us(detection, text, 4) * 4
            print(f"{kind:20} {name:10} {whole:15.3f} {1 / whole:8.1f} {delta:18.2f}")
    for kind, text in texts().items():
        print(f"memory of a channel, {kind}: {memory_bytes(text) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
