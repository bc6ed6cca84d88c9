"""The wires that replies come in: parse, hold, assemble, render an error."""
