"""The frozen values of one profile: how its callers are served and what its detector watches."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopguard.core.detection.detector import Detection
from loopguard.core.escape import Escape

Relay: TypeAlias = Literal["hold", "live"]
"""``hold``: nothing of a reply leaves before it completed. ``live``: deltas leave as they come."""

LiveTrip: TypeAlias = Literal["error", "finish"]
"""How a stream ends that tripped after part of it was relayed: in-band error or ``length``."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How one group of callers is served.

    Attributes:
        name: as written in the configuration.
        relay: how a streaming caller is served, unless its request says otherwise.
        live_trip: how a live stream ends when it trips after it was committed.
        stream_idle_s: seconds without a delta that carries something; then it is stalled.
        call_timeout_s: seconds that one attempt may take.
        detection: what is watched, by which rules.
        request_gate: whether repetition that the request asks for raises the rules' floors.
        stop_on_identical: whether two discarded attempts with the same text end the retrying.
        log_sample: whether a piece of what repeated is logged and kept in the ledger.
        escape: what a retry after a trip changes.
    """

    name: str
    relay: Relay
    live_trip: LiveTrip
    stream_idle_s: float
    call_timeout_s: float
    detection: Detection
    request_gate: bool
    stop_on_identical: bool
    log_sample: bool
    escape: Escape
