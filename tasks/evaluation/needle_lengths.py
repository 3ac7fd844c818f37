"""How long a text with needles must be at least. Importing this is cheap."""

MIN_LENGTH = 64
"""Tokens: of less there is no room for any needles, whatever the tokenizer."""
