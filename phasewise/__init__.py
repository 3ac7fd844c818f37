"""Phasewise: language models trained phase by phase, with judged data and gated hand-offs.

The packages of this name are the five folders at the top of the repository: links stand for them here.
"""

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib.metadata import version

    return version("phasewise")
