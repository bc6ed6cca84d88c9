"""JSON as others write it."""

import json

import pytest

from loopguard.core import json_text


def test_halves_of_a_surrogate_pair_survive() -> None:
    """Two halves of an emoji, each read from its own text, are one emoji once they are joined."""
    first, second = json_text.loads(b'"\\ud83d"'), json_text.loads(b'"\\ude00"')
    assert json.loads(json_text.dumps(first + second)) == "😀"


def test_long_integers_survive() -> None:
    """An integer of more than 64 bits is written as it was read."""
    number = 2**80
    assert json_text.loads(json_text.dumps({"seed": number})) == {"seed": number}


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":}', b"\xff", b"[" * 100_000])
def test_bad_text_is_a_value_error(text: bytes) -> None:
    """What is no JSON, or nested too deeply, raises ValueError and nothing else."""
    with pytest.raises(ValueError):  # noqa: PT011 - the caller of loads knows no more either
        json_text.loads(text)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_what_is_read_can_be_written(opening: str) -> None:
    """The deepest nesting that is read can be put into something and written; one more is not."""
    closing = "]" if opening == "[" else "}"
    deepest = (opening * 239 + "[]" + closing * 239).encode()
    assert json_text.dumps({"in": [json_text.loads(deepest)]}) == b'{"in":[' + deepest + b"]}"
    with pytest.raises(ValueError, match="nested too deeply"):
        json_text.loads((opening * 240 + "[]" + closing * 240).encode())


def test_much_that_is_not_deep_is_read() -> None:
    """Many values beside one another are no nesting."""
    assert json_text.loads(b"[" + b"[[], 7]," * 500 + b"[]]") == [*[[[], 7]] * 500, []]


@pytest.mark.parametrize("text", [b"1e999", b"[-1e400, 1]", b"NaN", b'{"a":-Infinity}'])
def test_what_is_written_again_is_finite(text: bytes) -> None:
    """A number that would be written as null is read, but not for writing it."""
    assert json_text.loads(text) is not None
    with pytest.raises(ValueError, match="not finite"):
        json_text.loads(text, to_write=True)
    half_a_pair = json_text.loads(b'{"a":"\\ud83d","b":1.5}', to_write=True)
    assert half_a_pair == {"a": "\ud83d", "b": 1.5}


def test_what_is_no_json_value_is_refused() -> None:
    """A value that JSON has no form for raises TypeError."""
    with pytest.raises(TypeError):
        json_text.dumps({"a": object()})


def test_string_body_is_the_inside_of_a_string() -> None:
    """The body of a string, put between quotes, is that string."""
    text = 'a "quoted"\nline\\ with 😀'
    assert json.loads(b'"' + json_text.string_body(text) + b'"') == text
