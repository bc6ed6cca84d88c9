"""The whole error family: whose fault it is, whether asking again can help, which status it has.

Every failure that loopguard itself answers with is one of these. The dialect of the exchange
gives it its form (`loopguard.core.dialects`); nothing else builds an error body.
"""

from typing import ClassVar, Literal, TypeAlias

Source: TypeAlias = Literal["caller", "upstream", "loopguard"]


class LoopguardError(Exception):
    """A failure of one exchange, told to its caller.

    Attributes:
        status: HTTP status, where the head has not left yet.
        stream_code: the ``code`` of the error inside a stream whose head has left.
        error_type: the failure's name, stable for programs.
        source: whose fault it is.
        retryable: whether its caller may ask again at once: little or nothing was spent on it. An
            SDK that is told of any other error by status is told not to (`X-Should-Retry`).
        retry_after_s: seconds after which asking again makes sense, None where nothing is known.
        details: figures for the caller, JSON values by name.
    """

    status: ClassVar[int]
    error_type: ClassVar[str]
    source: ClassVar[Source]
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details or {}

    @property
    def stream_code(self) -> int:
        """The error's code inside a stream: the status that it would have had."""
        return self.status


class InvalidRequest(LoopguardError):
    """The caller's request cannot be served as it is."""

    status = 400
    error_type = "invalid_request"
    source = "caller"


class Unauthorized(LoopguardError):
    """The caller presented none of the tokens that the operator gave out."""

    status = 401
    error_type = "authentication"
    source = "caller"


class Forbidden(LoopguardError):
    """The operator's key is not lent for this."""

    status = 403
    error_type = "permission_denied"
    source = "caller"


class PathNotFound(LoopguardError):
    """The path names nothing below the upstream's prefix."""

    status = 404
    error_type = "not_found"
    source = "caller"


class MethodNotAllowed(LoopguardError):
    """The path is there, and does not take the method."""

    status = 405
    error_type = "method_not_allowed"
    source = "caller"


class SlowCaller(LoopguardError):
    """The caller's request did not arrive within the operator's limit."""

    status = 408
    error_type = "timeout"
    source = "caller"


class HeadTooLarge(LoopguardError):
    """The request's first line or one of its headers is longer than is read."""

    status = 431
    error_type = "head_too_large"
    source = "caller"


class BodyTooLarge(LoopguardError):
    """The request's body exceeds the operator's limit."""

    status = 413
    error_type = "payload_too_large"
    source = "caller"


class Draining(LoopguardError):
    """This process is about to end and takes no further exchange, or ends a running one."""

    status = 503
    error_type = "draining"
    source = "loopguard"
    retryable = True


class TooManyConnections(LoopguardError):
    """This process has as many connections as the operator allows, and takes no other."""

    status = 503
    error_type = "overloaded"
    source = "loopguard"
    retryable = True


class InternalFault(LoopguardError):
    """loopguard itself is at fault."""

    status = 500
    error_type = "server"
    source = "loopguard"


class UpstreamUnusable(LoopguardError):
    """The upstream cannot be reached, broke off, or does not speak the dialect."""

    status = 502
    error_type = "upstream_unusable"
    source = "upstream"


class NotPassedOn(UpstreamUnusable):
    """A request that is not guarded could not be passed on; it has been tried once."""

    retryable = True


class UpstreamTimeout(LoopguardError):
    """The upstream fell silent or took longer than the operator allows."""

    status = 504
    error_type = "upstream_timeout"
    source = "upstream"


class ModelResponseLoop(LoopguardError):
    """The model looped; asking again at once would loop, and be paid, again.

    Inside a stream its code is 400: with 5xx some callers ask again many times (clients.md).
    """

    status = 502
    error_type = "model_response_loop"
    source = "upstream"

    @property
    def stream_code(self) -> int:
        """400, not the status."""
        return 400
