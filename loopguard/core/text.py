"""Text of a model, a caller or an operator, made fit to stand in a line."""


def one_line(text: str) -> str:
    """The text with everything escaped that could end a line or steer a terminal.

    What is escaped is what ``str.isprintable`` denies: controls, every kind of line end, marks that
    turn the reading direction, lone surrogates.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
