import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(240)  # a guard against hanging


@pytest.mark.long
def test_whatever_is_done_to_a_run_ends_in_a_refusal_or_in_what_was_promised():
    command = [sys.executable, "-m", "experiments.survival", "--steps", "50", "--seconds", "10", "--seed", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert ended.returncode == 0, ended.stderr[-4000:]
    counts = json.loads(ended.stdout)["counts"]
    assert len({name.split(":")[0] for name in counts}) >= 5, "several rules, not one again and again"
