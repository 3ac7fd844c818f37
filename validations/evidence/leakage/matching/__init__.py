"""Which items are in a text: the compiled loops, and the rules by which a find counts."""
