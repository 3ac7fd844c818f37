"""`python -m trainer RUN.json`: train one phase, without Prefect."""

import sys

from trainer.process.platform import spare_search
from trainer.process.stopping import end_where_asked_to_stop

if __name__ == "__main__":
    end_where_asked_to_stop()
    spare_search()
    from trainer.run import main

    sys.exit(main(sys.argv[1:]))
