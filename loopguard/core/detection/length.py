"""The length backstop: a reply that passes a ceiling is abandoned, whatever it says.

It is for the runaway that writes novel garbage rather than a period. Its blind spot is its point:
it cannot tell a long good reply from a bad one, so the ceiling belongs far above any wanted reply.
"""


def chars_until_passed(max_response_chars: int, read_chars: int, text_chars: int) -> int | None:
    """How many characters of the next text it takes to pass the ceiling, or None.

    Args:
        max_response_chars: the ceiling; a reply of exactly so many characters is still within it.
            0 turns the backstop off.
        read_chars: characters read before this text, at most the ceiling.
        text_chars: characters of this text.
    """
    if max_response_chars and read_chars + text_chars > max_response_chars:
        return max_response_chars + 1 - read_chars
    return None
