"""The caller's body becomes the upstream's."""

import json

import pytest

from loopguard.core.dialects import chat
from loopguard.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "hello"}]


def test_stream_and_usage_are_asked_for() -> None:
    """A request for a whole reply asks the upstream for a stream with its usage."""
    plan = chat.plan(json.dumps({"model": "m", "messages": MESSAGES, "seed": 7}).encode())
    assert json.loads(plan.body) == {
        "model": "m",
        "messages": MESSAGES,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert (plan.stream, plan.usage_asked, plan.model) == (False, False, "m")


def test_other_stream_options_are_kept() -> None:
    """What else the caller asks of the stream is sent on."""
    body = b'{"stream":true,"stream_options":{"include_obfuscation":false}}'
    assert json.loads(chat.plan(body).body)["stream_options"] == {
        "include_obfuscation": False,
        "include_usage": True,
    }


def test_body_that_asks_for_both_is_sent_as_it_came() -> None:
    """A request that asks for a stream and its usage goes out byte for byte."""
    body = b'{ "stream" : true, "stream_options": {"include_usage": true}, "top_p": 0.10 }'
    plan = chat.plan(body)
    assert plan.body == body
    assert plan.stream
    assert plan.usage_asked


def test_stream_options_of_the_wrong_kind_are_the_upstreams_to_refuse() -> None:
    """Stream options that are no object are sent on as they are."""
    plan = chat.plan(b'{"stream_options":"usage"}')
    assert json.loads(plan.body)["stream_options"] == "usage"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"stream":"yes"}', "`stream` is not a boolean"),
        (b'{"stream":1}', "`stream` is not a boolean"),
        (b'{"a":' * 5000, "not JSON"),
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes, message: str) -> None:
    """A body that is no JSON object, or whose stream is no boolean, is the caller's fault."""
    with pytest.raises(InvalidRequest, match=message) as caught:
        chat.plan(body)
    assert caught.value.status == 400


def test_canonical_form_is_of_the_reply_not_of_its_delivery() -> None:
    """The same request, streamed or whole, in whatever order of keys, has one canonical form."""
    streamed = chat.plan(b'{"model":"m","messages":[],"stream":true,"big":99999999999999999999}')
    whole = chat.plan(b'{"big":99999999999999999999, "messages":[], "model":"m"}')
    other = chat.plan(b'{"model":"n","messages":[]}')
    assert streamed.canonical() == whole.canonical()
    assert streamed.canonical() != other.canonical()


def test_model_that_is_no_name() -> None:
    """A model that is no text is left to the upstream, and counted as unnamed."""
    assert chat.plan(b'{"model":7}').model is None


@pytest.mark.parametrize("session", [b"7", b'""', b"null", b"[]", b"true"])
def test_session_that_is_no_name(session: bytes) -> None:
    """A session that is no text, or empty, groups nothing and is left to the upstream."""
    body = b'{"stream":true,"stream_options":{"include_usage":true},"session_id":%b}' % session
    plan = chat.plan(body)
    assert plan.session is None
    assert plan.body == body
