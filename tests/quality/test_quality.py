"""The bars that the detector has reached on the shared corpora; CI runs a sample of the files.

The whole tables: ``python -m tests.quality.score``.
"""

import pytest

from tests.quality import corpus, score
from tests.quality.literals import LITERALS
from tests.quality.score import DOCUMENT, SHIPPED, STRETCH_ALONE, tripped_at

needs_corpus = pytest.mark.skipif(
    not corpus.CORPUS.is_dir(), reason=f"the shared corpora are not at {corpus.CORPUS}"
)


@needs_corpus
def test_reported_loops_are_caught_soon() -> None:
    """At least 97 % trip within 50,000 characters, half within 4,000, nine tenths within 8,000."""
    result = score.recall(lambda case: tripped_at(SHIPPED, case), corpus.loops())
    assert result.early == []
    assert result.caught >= 0.97 * result.total, result.missed
    assert result.median <= 4_000
    assert result.percentile_90 <= 8_000


@needs_corpus
def test_legitimate_cases_pass() -> None:
    """What was reported as a false trip of others does not trip."""
    assert score.tripping(lambda case: tripped_at(SHIPPED, case), corpus.legitimate()) == []


@needs_corpus
def test_exact_loops_of_real_models_are_all_caught() -> None:
    """Every exact loop in a published reply trips when it is continued."""
    result = score.recall(lambda case: tripped_at(SHIPPED, case), corpus.exact_loops())
    assert result.missed == []


@needs_corpus
def test_inexact_loops_of_real_models_are_mostly_caught() -> None:
    """Of counter and near loops of 8,000 characters and more at least 60 % trip as they are."""
    long = [case for case in corpus.inexact_loops() if len(case.text) >= score.LONG_CHARS]
    caught = score.tripping(lambda case: tripped_at(SHIPPED, case), long)
    assert len(caught) >= 0.6 * len(long)


@needs_corpus
def test_replies_that_do_not_loop_never_trip() -> None:
    """Not one of the published replies trips, the most repetitive ones included."""
    assert score.tripping(lambda case: tripped_at(SHIPPED, case), corpus.replies()) == []


@needs_corpus
def test_ordinary_replies_are_hardly_ever_suspected() -> None:
    """Under 1 % of the replies are ever held back, and under 0.3 % of their characters."""
    suspected, replies, suspect_chars, chars = score.suspicion(SHIPPED, corpus.replies())
    assert suspected < 0.01 * replies
    assert suspect_chars < 0.003 * chars


@pytest.mark.parametrize("kind", LITERALS)
def test_literals_of_realistic_size_pass_the_stretch_rule(kind: str) -> None:
    """Data, tables, rows, lyrics and asked repetition of realistic size do not trip it."""
    write, size = LITERALS[kind]
    case = corpus.Case(kind, "content", write(size), None)
    assert tripped_at(STRETCH_ALONE, case) is None


def test_the_frequency_rule_takes_large_literals_of_few_values_for_loops() -> None:
    """What the operator of the document's figures accepts, and no more."""
    tripped = score.tripping(lambda case: tripped_at(DOCUMENT, case), score.literal_cases())
    assert tripped == [
        "tilemap, side 64",
        "tilemap of 3 ids, side 100",
        "multiplication tables, side 31",
    ]
    assert score.tripping(lambda case: tripped_at(SHIPPED, case), score.literal_cases()) == tripped


def test_ordinary_files_pass() -> None:
    """Of a sample of 1,000 files at most five trip in their first 60,000 characters."""
    tripped = score.tripping(lambda case: tripped_at(SHIPPED, case), score.file_cases(1_000))
    assert len(tripped) <= 5, tripped
