"""`python -m phasewise`: the command line."""

from phasewise.flows.cli.main import main

main()
