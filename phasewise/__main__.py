"""`python -m phasewise`: the command line."""

from phasewise.flows.cli import main

main()
