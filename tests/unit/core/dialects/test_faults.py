"""The status that an error inside a stream stands for."""

import pytest

from loopguard.core.dialects.faults import read_fault, read_refusal
from loopguard.core.events import UpstreamFault
from loopguard.core.retry import Refused


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 429}, 429),
        ({"code": "429"}, 429),
        ({"code": 200}, 502),
        ({"code": None, "type": "overloaded_error"}, 529),
        ({"code": "server_error"}, 502),
        ({"code": 0, "metadata": {"error_type": "timeout"}}, 504),
        ({"error_type": "refusal"}, 403),
        ({"code": "unsupported_image_media_type"}, 400),
        ({"code": ["x"], "metadata": "x"}, 502),
        ({}, 502),
        ("in words", 502),
        (None, 502),
    ],
)
def test_status_of_an_error(error: object, status: int) -> None:
    """A number, or a word in one of the places where upstreams put it, tells the status."""
    fault = read_fault(error)
    assert fault.status == status
    assert fault.error == (error if isinstance(error, dict) else {"message": str(error)})


def test_refusals() -> None:
    """A refusal's error object is read from its body, or made of its status."""
    assert read_refusal(Refused(400, b'{"error":{"a":1}}')) == {"a": 1}
    assert read_refusal(Refused(400, b'{"error":"words"}')) == {"message": "words"}
    assert "503" in read_refusal(Refused(503, b"[]"))["message"]
    assert read_fault({"code": 9}) == UpstreamFault(502, {"code": 9})
