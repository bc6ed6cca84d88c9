"""Which HTTP status an error would have had that came inside a stream.

Upstreams name it by a number, or by a word in one of four places: OpenRouter's ``error_type``,
OpenAI's ``code`` and ``type``, Anthropic's ``type``. What no table knows is taken for a failure of
the upstream, 502, which is worth asking again.
"""

from collections.abc import Iterator

from loopguard.core import json_text
from loopguard.core.dialects.fields import Json
from loopguard.core.events import UpstreamFault
from loopguard.core.retry import Refused

_FIRST_ERROR_STATUS = 400
_LAST_ERROR_STATUS = 599
_BAD_GATEWAY = 502

_STATUSES = {
    # OpenRouter, "Errors and debugging"; what it calls `unmapped` is what stands in no table.
    "context_length_exceeded": 400,
    "max_tokens_exceeded": 400,
    "token_limit_exceeded": 400,
    "string_too_long": 400,
    "authentication": 401,
    "payment_required": 402,
    "permission_denied": 403,
    "content_policy_violation": 403,
    "refusal": 403,
    "not_found": 404,
    "precondition_failed": 412,
    "payload_too_large": 413,
    "unprocessable": 422,
    "rate_limit_exceeded": 429,
    "server": 500,
    "provider_unavailable": 502,
    "provider_overloaded": 503,
    "timeout": 504,
    "invalid_request": 400,
    "invalid_prompt": 400,
    # OpenAI, `ResponseErrorCode`.
    "server_error": 502,
    "vector_store_timeout": 504,
    "bio_policy": 403,
    # Anthropic, "Errors".
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def read_fault(error: object) -> UpstreamFault:
    """Read an error object as it stands in a stream or in a body of status 200."""
    known = error if isinstance(error, dict) else {"message": str(error)}
    return UpstreamFault(next(_statuses(known), _BAD_GATEWAY), known)


def read_refusal(refused: Refused) -> Json:
    """The error object of an upstream's answer, one in its stead where none can be read."""
    try:
        error = json_text.loads(refused.body)["error"]
    except (KeyError, TypeError, ValueError):
        error = f"the upstream answered with status {refused.status}"
    return read_fault(error).error


def _statuses(error: Json) -> Iterator[int]:
    metadata = error.get("metadata")
    named = metadata.get("error_type") if isinstance(metadata, dict) else None
    for word in (error.get("code"), named, error.get("error_type"), error.get("type")):
        if isinstance(word, int | float | str) and (status := _status(word)) is not None:
            yield status


def _status(word: float | str) -> int | None:
    if word in _STATUSES:
        return _STATUSES[str(word)]
    try:
        status = int(word)
    except (OverflowError, ValueError):
        # A picture can be bad in a dozen ways, each with a word of its own.
        return 400 if "image" in str(word) else None
    return status if _FIRST_ERROR_STATUS <= status <= _LAST_ERROR_STATUS else None
