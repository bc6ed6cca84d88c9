"""Answers that the listener for operators gives in several places."""

import asyncio
import logging
from collections.abc import Awaitable

from aiohttp import web

_log = logging.getLogger("loopguard")


def refusal(status: int, said: str) -> web.Response:
    """An error, told as every other."""
    return web.json_response({"error": said}, status=status)


async def of_ledger(reading: Awaitable[object], within_s: float) -> web.Response:
    """What is read of the ledger, or that it cannot be read within so many seconds."""
    try:
        async with asyncio.timeout(within_s):
            return web.json_response(await reading)
    except Exception:  # noqa: BLE001 - of whatever driver's family it is
        _log.warning("the ledger cannot be read", exc_info=True)
        return refusal(503, "the ledger cannot be read")
