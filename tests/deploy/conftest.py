"""What runs in front of and around loopguard is tested with the fixtures of the whole path."""

from tests.end_to_end.conftest import guarded

__all__ = ["guarded"]
