import sys
from pathlib import Path

if sys.orig_argv[1:3] == ["-m", "phasewise.flows.cli.main"] and not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parents[1]:
    del sys.path[0]  # the current folder, before any import from it, like `-P`
