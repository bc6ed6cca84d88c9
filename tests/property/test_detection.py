"""The detector, held to a naive recount and to every split of the text."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loopguard.core.detection.detector import Detection, Detector, Trip
from loopguard.core.detection.frequency import FrequencyKnobs

KNOBS = st.builds(
    FrequencyKnobs,
    window_words=st.integers(1, 12),
    repeat_threshold=st.integers(1, 4),
    min_offenders=st.integers(1, 3),
    min_saturated_run=st.integers(0, 12),
    max_response_chars=st.sampled_from([0, 1, 40, 300, 3000]),
)
PIECES = st.lists(
    st.one_of(
        st.text("ab \n", max_size=12),
        st.text(max_size=6),
        st.sampled_from(["a b ", "a ", "a b c ", "\u3000", "x" * 60, "yx" * 90]).flatmap(
            lambda unit: st.integers(1, 8).map(lambda times: unit * times)
        ),
    ),
    max_size=30,
)


def recount(text: str, knobs: FrequencyKnobs) -> tuple[str, int, int] | None:
    """The rule as the document tells it, one character at a time; rule, words, characters."""
    window: list[str] = []
    pending = ""
    words = run = 0
    for chars, character in enumerate(text, 1):
        word = None
        if not character.isspace():
            pending += character
            if len(pending) == 128:
                word, pending = pending, ""
        elif pending:
            word, pending = pending, ""
        if word is not None:
            words += 1
            window = [*window, word][-knobs.window_words :]
            offending = [n for n in Counter(window).values() if n > knobs.repeat_threshold]
            run = run + 1 if len(offending) >= knobs.min_offenders else 0
            if run and run >= knobs.min_saturated_run and len(window) == knobs.window_words:
                return "frequency", words, chars
        if knobs.max_response_chars and chars > knobs.max_response_chars:
            return "length", words, chars
    return None


def judge(pieces: list[str], knobs: FrequencyKnobs) -> Trip | None:
    detector = Detector(Detection(("content",), knobs))
    for piece in pieces:
        detector.feed("content", piece)
    return detector.feed("content", "")


@given(PIECES, KNOBS)
def test_the_detector_equals_a_naive_recount(pieces: list[str], knobs: FrequencyKnobs) -> None:
    """The verdict, its word and its character are those of a naive recount of the text."""
    trip = judge(pieces, knobs)
    seen = None if trip is None else (trip.rule, trip.words, trip.chars)
    assert seen == recount("".join(pieces), knobs)


@given(PIECES, KNOBS)
def test_any_split_gives_the_same_verdict(pieces: list[str], knobs: FrequencyKnobs) -> None:
    """One piece, single characters and any pieces between give the same trip."""
    text = "".join(pieces)
    trip = judge(pieces, knobs)
    assert judge([text], knobs) == trip
    assert judge(list(text), knobs) == trip
