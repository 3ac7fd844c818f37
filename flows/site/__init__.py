"""HTML pages on the recipes, phases, verdicts and training of a home, read only.

`deployments/site.py` serves the pages, and `phasewise report --site` writes them as files.
"""
