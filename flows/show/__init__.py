"""Recipes for `phasewise show`: as data (`describe`, `cost`, `difference`), and printed (`pages`, `words`)."""
