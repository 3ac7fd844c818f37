"""`python -m phasewise.trainer RUN.json`: train one phase, without Prefect."""

import sys

from phasewise.trainer.process.accelerator import keep_freed_memory, spare_search
from phasewise.trainer.process.child_process import end_where_asked_to_stop

if __name__ == "__main__":
    end_where_asked_to_stop()
    spare_search()
    keep_freed_memory()
    from phasewise.trainer.run import main

    sys.exit(main(sys.argv[1:]))
