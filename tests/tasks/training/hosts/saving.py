"""A trainer's stand-in that saves: `saving -P -m phasewise.trainer RUN.json …`, as `python` is called. It needs no jax, and
starts in an instant.

It makes an update whenever the number in the file that `UNTIL` names is larger than its step, with a row for each, and saves every
fifth. On SIGTERM it saves where it is, and ends with 75. At the end of the run it saves and writes a result. Its weights are the sum of
all its steps.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

EVERY = 5


def save(folder: Path, step: int, total: int) -> None:
    """A checkpoint as a trainer writes one: its files, and then the list of them."""
    place = folder / "checkpoints" / str(step)
    place.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"step": step, "sum": total}).encode()
    (place / "weights").write_bytes(content)
    listed = {"weights": {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    (place / "digests.json").write_text(json.dumps({"files": listed}))


def restored(folder: Path) -> tuple[int, int]:
    """Step and sum of the newest checkpoint; rows after it are cut off."""
    steps = [int(path.parent.name) for path in folder.glob("checkpoints/*/weights")]
    said = json.loads((folder / "checkpoints" / str(max(steps)) / "weights").read_text()) if steps else {"step": 0, "sum": 0}
    rows = (folder / "metrics.jsonl").read_text().splitlines() if steps else []
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows[: said["step"]]))
    return said["step"], said["sum"]


def main(run_file: Path) -> int:
    folder, run = run_file.parent, json.loads(run_file.read_text())
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    step, total = restored(folder)
    print(f"begins after step {step}", flush=True)
    beats = 0
    while step < run["stop_step"]:
        beats += 1
        (folder / "heartbeat").write_text(
            json.dumps({"work": "step", "time": time.ctime(), "beat": beats, "step": step, "pid": os.getpid()})
        )
        if asked:
            save(folder, step, total)
            print(f"trainer: saved step {step}", flush=True)
            return 75
        if step >= int(Path(os.environ["UNTIL"]).read_text()):
            time.sleep(0.02)
            continue
        step += 1
        total += step
        with open(folder / "metrics.jsonl", "a") as rows:
            rows.write(json.dumps({"step": step, "loss": 1 / step, "tokens": 64, "seconds": time.time()}) + "\n")
        if step % EVERY == 0:
            save(folder, step, total)
    save(folder, step, total)
    result = {"phase": run["phase"], "run_digest": os.environ.get("RUN_DIGEST"), "checkpoint": "", "params_digest": str(total)}
    (folder / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[4])))
