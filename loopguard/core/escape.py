"""What a retry after a trip may change, so that it does not loop again.

An identical retry tends to reach the same endpoint, and at temperature 0 the same loop
(openrouter.md section 6). Each trip adds the next step of the operator's list; the steps before it
stay. Nothing is changed that the operator did not write, and a retry for any other reason changes
nothing further.

Blind spots: a provider that does not know a parameter ignores it without a word. A stream names its
provider as people do, and `ignore_provider` makes the slug from that name, which is right for most;
where the upstream answers that nobody is left to serve the request, the exchange goes on without
that step.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

from loopguard.core import json_text
from loopguard.core.plan import read_object

Step: TypeAlias = Literal[
    "ignore_provider", "raise_temperature", "drop_seed", "repetition_penalty", "fallback_model"
]

NO_PROVIDER_STATUS = 404
"""The upstream's answer where ignoring a provider leaves none."""


@dataclass(frozen=True, slots=True)
class Escape:
    """The operator's list, and the figures of its steps.

    Attributes:
        steps: in the order in which trips add them.
        temperature: what ``raise_temperature`` raises to; a higher one of the caller stays.
        repetition_penalty: what ``repetition_penalty`` sets.
        fallback_model: what ``fallback_model`` asks instead.
    """

    steps: tuple[Step, ...] = ()
    temperature: float = 1.0
    repetition_penalty: float = 1.1
    fallback_model: str = ""

    def body(
        self, body: bytes, trips: int, providers: Sequence[str], *, without: Sequence[Step] = ()
    ) -> bytes:
        """The request for the attempt after so many trips.

        Args:
            body: the unchanged request.
            trips: attempts of this exchange that looped.
            providers: those that looped, as the streams named them.
            without: steps that have turned out to be useless.
        """
        steps = [step for step in self.steps[:trips] if step not in without]
        if not steps:
            return body
        request = read_object(body)
        for step in steps:
            self._take(step, request, providers)
        return json_text.dumps(request)

    def _take(self, step: Step, request: dict[str, Any], providers: Sequence[str]) -> None:
        match step:
            case "ignore_provider":
                _ignore(request, providers)
            case "raise_temperature":
                temperature = request.get("temperature")
                if not isinstance(temperature, int | float) or temperature < self.temperature:
                    request["temperature"] = self.temperature
            case "drop_seed":
                request.pop("seed", None)
            case "repetition_penalty":
                request["repetition_penalty"] = self.repetition_penalty
            case "fallback_model":
                request["model"] = self.fallback_model
            case _:
                assert_never(step)


def _ignore(request: dict[str, Any], providers: Sequence[str]) -> None:
    routing = request.get("provider")
    routing = dict(routing) if isinstance(routing, dict) else {}
    ignored = list(routing.get("ignore") or ())
    for provider in providers:
        slug = provider_slug(provider)
        if slug not in ignored:
            ignored.append(slug)
    if ignored:
        request["provider"] = routing | {"ignore": ignored}


def provider_slug(name: str) -> str:
    """The slug of a provider that a stream names: ``Google AI Studio`` is ``google-ai-studio``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
