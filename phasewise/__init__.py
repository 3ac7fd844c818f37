"""Phasewise: language models trained phase by phase, with judged data and gated hand-offs.

The packages of this name are the five folders at the top of the repository: links stand for them here.
"""

from importlib.metadata import version

__version__ = version("phasewise")
