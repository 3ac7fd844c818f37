"""`python -m phasewise.tasks.training.hosts …`: one host of a launch; see `program`."""

import sys

from phasewise.tasks.training.hosts.program import end_as, main

if __name__ == "__main__":
    end_as(main(sys.argv[1:]))
