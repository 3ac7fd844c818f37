"""`python -m trainer RUN.json`: train one phase, without Prefect."""

import sys

from trainer.process.platform import spare_search

if __name__ == "__main__":
    spare_search()
    from trainer.run import main

    sys.exit(main(sys.argv[1:]))
