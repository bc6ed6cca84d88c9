"""Garbage beside healthy streams: ``python -m tests.faults.garbage [--seconds 60] [--rate 1000]``.

Streams run through `loopguard serve`, live, an event every fifth of a second each. Beside them a
process of its own writes bad inputs of the table to both listeners, each on a connection of its
own, 1,000 a second to each of the two; it prepares the bytes once and never waits for an
answer, so that it costs less than what it attacks. One input in a hundred is a head that does not
end, and stays open. Of each event it is known when the upstream wrote it and when the caller read
it. Prints how late the latest was, and how many streams came to their end; the exit status is 1
where a stream was cut, or an event came more than a second late.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

from tests.end_to_end.bad_inputs import TOKEN, all_of_them, ask
from tests.end_to_end.command import serving
from tests.end_to_end.raw_caller import metrics
from tests.fake_openrouter import DONE, FakeOpenRouter, event, head
from tests.fake_openrouter.line import Line
from tests.fake_openrouter.steps import Step

PACE_S = 0.2

# What is longer is a test of the bounds, and of the generator's own speed.
LONGEST_BYTES = 4096

# An answer is read, or thrown away, after so long; the connection is reset then.
READ_AFTER_S = 0.25

# Of a head that does not end.
OPEN_S = 2.0
ONE_OPEN_IN = 100

NO_LINGERING = struct.pack("ii", 1, 0)


@dataclasses.dataclass
class Figures:
    """What came of it.

    Attributes:
        sent: pieces of garbage, to each listener.
        failed: connections that did not come about.
        ended: streams that came to their proper end.
        events: that all streams carried.
        latest_s: how long the slowest event was on its way.
        median_s: and half of them.
        refusals: that loopguard counted at the callers' listener.
        errors: lines of its log above level info.
    """

    sent: list[int]
    failed: int
    ended: int
    events: int
    latest_s: float
    median_s: float
    refusals: int
    errors: int


def garbage(listener: str) -> list[bytes]:
    """What is written to a listener, in an order that mixes its kinds."""
    pieces = [
        bad.sent
        for bad in all_of_them()
        if bad.listener == listener and bad.statuses not in {(408,), ()}
    ]
    pieces = [piece for piece in pieces if len(piece) <= LONGEST_BYTES]
    random.Random(7).shuffle(pieces)
    return pieces


def generate(ports: list[int], rate: int, seconds: float) -> None:
    """Write garbage, so many pieces a second to each port; print what was sent, as JSON."""
    kinds = [garbage(listener) for listener in ("api", "admin")]
    unfinished = b"POST /v1/chat/completions HTTP/1.1\r\nX: "
    open_until: deque[tuple[float, socket.socket]] = deque()
    kept: deque[tuple[float, socket.socket]] = deque()
    sent, failed = [0, 0], 0
    began_at = time.monotonic()
    while (elapsed_s := time.monotonic() - began_at) < seconds:
        for number, port in enumerate(ports):
            while sent[number] < elapsed_s * rate:
                lasting = sent[number] % ONE_OPEN_IN == 0
                piece = unfinished if lasting else kinds[number][sent[number] % len(kinds[number])]
                peer = socket.socket()
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGERING)
                peer.settimeout(1)
                try:
                    peer.connect(("127.0.0.1", port))
                    peer.send(piece)
                except OSError:
                    failed += 1
                until = time.monotonic() + (OPEN_S if lasting else READ_AFTER_S)
                (kept if lasting else open_until).append((until, peer))
                sent[number] += 1
        for peers in (open_until, kept):
            while peers and peers[0][0] < time.monotonic():
                peers.popleft()[1].close()
        time.sleep(0.002)
    for _, peer in (*open_until, *kept):
        peer.close()
    print(json.dumps({"sent": sent, "failed": failed}))


class Streams:
    """Healthy streams, and how long each of their events was on its way.

    Args:
        count: of streams.
        seconds: that each of them takes.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.events = int(seconds / PACE_S)
        self.ended = 0
        self.delays_s: list[float] = []
        self._written_at: dict[bytes, float] = {}
        self._words = self._every_word()

    def _every_word(self) -> Iterator[str]:
        chance = random.Random(1)
        while True:
            yield "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=12))

    def answer(self) -> list[Step]:
        """A reply of words that do not come again, each noted when it is written."""

        async def tick(line: Line) -> None:
            word = next(self._words)
            self._written_at[word.encode()] = time.monotonic()
            await line.body(event({"choices": [{"index": 0, "delta": {"content": f" {word}"}}]}))
            await asyncio.sleep(PACE_S)

        end = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        return [head(), *[tick] * self.events, end, DONE]

    async def read(self, port: int) -> None:
        """Be the caller of one stream."""
        body = b'{"model":"m/x","messages":[],"stream":true}'
        request = ask(body, "X-Loopguard-Relay: live")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        seen = 0
        rest = b""
        while piece := await reader.read(1 << 16):
            now = time.monotonic()
            rest += piece
            *events, rest = rest.split(b"\n\n")
            for text in events:
                _, found, word = text.partition(b'"content":" ')
                if found:
                    self.delays_s.append(now - self._written_at.pop(word[:12]))
                    seen += 1
                elif text.endswith(DONE.strip()) and seen == self.events:
                    self.ended += 1
        writer.close()


async def beside_garbage(count: int, rate: int, seconds: float) -> Figures:
    """Run the streams with the garbage beside them."""
    streams = Streams(count, seconds + 1)
    async with (
        FakeOpenRouter([streams.answer()]) as fake,
        serving(
            fake.base_url, server__client_tokens=TOKEN, upstream__api_key="sk-operator"
        ) as command,
    ):
        reading = [asyncio.create_task(streams.read(command.port)) for _ in range(count)]
        await fake.attempt(count)
        ports = [str(command.port), command.admin.rpartition(":")[2]]
        generator = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.garbage", "--ports", *ports,
            "--rate", str(rate), "--seconds", str(seconds), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        told = json.loads((await generator.communicate())[0])
        await asyncio.gather(*reading)
        series = await metrics(command.admin)
        command.terminate()
        await command.ended()
    delays_s = sorted(streams.delays_s)
    return Figures(
        **told,
        ended=streams.ended,
        events=len(delays_s),
        latest_s=delays_s[-1],
        median_s=delays_s[len(delays_s) // 2],
        refusals=int(series["loopguard_refusals_total"]),
        errors=sum(json.loads(line)["level"] != "info" for line in command.lines),
    )


def main() -> int:
    """Attack, and print what came of it; or be the attacker."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.garbage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=1000, help="a second, to each listener")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--ports", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ports:
        generate(arguments.ports, arguments.rate, arguments.seconds)
        return 0
    figures = asyncio.run(beside_garbage(arguments.streams, arguments.rate, arguments.seconds))
    rate = sum(figures.sent) / arguments.seconds
    print(
        f"{sum(figures.sent)} pieces of garbage ({rate:.0f} a second, of {figures.sent[0]} to the "
        f"callers' listener; {figures.failed} connections failed; {figures.refusals} refusals "
        f"counted, {figures.errors} lines logged)\n"
        f"{figures.ended} of {arguments.streams} streams ended properly, {figures.events} events; "
        f"on their way {figures.median_s * 1000:.1f} ms in the median, at the most "
        f"{figures.latest_s * 1000:.0f} ms"
    )
    return 0 if figures.ended == arguments.streams and figures.latest_s < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
