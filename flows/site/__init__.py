"""The page that shows everything: recipes, phases, verdicts and training, as HTML made from what the home holds.

It reads, decides nothing and writes nothing. `deployments/site.py` serves it, `phasewise report --site` writes it as files.
"""
