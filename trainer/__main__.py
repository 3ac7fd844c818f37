"""`python -m trainer RUN.json`: train one phase, without Prefect."""

import sys

from trainer.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
