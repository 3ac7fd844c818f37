"""A trainer's stand-in for tests of launchers alone: `stand_in -P -m phasewise.trainer RUN.json …`, as `python` is called.

It starts in an instant, writes its heartbeat, and ends with 75 on SIGTERM, on the byte `s` and at the end of its input, or as the file
`end-N` in the run's folder says: a number is its exit code; `deaf` is that it does not hear.
"""

import json
import os
import select
import signal
import sys
import time
from pathlib import Path


def main(run_file: Path, has_parent: bool) -> int:
    folder, number = run_file.parent, os.environ.get("JAX_PROCESS_ID", "0")
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    place = folder / "roll-call" / os.environ.get("PHASEWISE_LAUNCH", "none")
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{number}.json").write_text(json.dumps({"pid": os.getpid()}))
    print(f"process {number} is here", file=sys.stderr, flush=True)
    while True:
        if number == "0":
            (folder / "heartbeat").write_text(json.dumps({"work": "step", "time": time.time()}))
        told = (folder / f"end-{number}").read_text() if (folder / f"end-{number}").exists() else ""
        if asked and told != "deaf":
            return 75
        if told.isdecimal():
            print(f"trainer: the reason of {number}", file=sys.stderr, flush=True)
            return int(told)
        if has_parent and select.select([0], [], [], 0.02)[0]:
            said = os.read(0, 1)
            asked += [1] if said == b"s" else []
            if said == b"":
                return 75
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[4]), "--with-parent" in sys.argv))
