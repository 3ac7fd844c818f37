import math

from phasewise.tasks.progress import Meter, Milestones, Progress


def test_speed_and_time_left_are_of_the_bytes_of_now():
    """Of 10 GB 6 were read on another day: 1 GB in 100 s is 10 MB/s, and the 3 that are left take 300 s."""
    now = [50.0]
    meter = Meter([6 * 10**9, 10**9, 3 * 10**9], finished={0}, clock=lambda: now[0])
    assert meter.add(0) == ("(6.00 of 10.00 GB)", math.inf)
    now[0] += 100
    assert meter.add(1) == ("(7.00 of 10.00 GB, 10.0 MB/s)", 300.0)
    # Nine of ten calls are done, and hardly anything of the bytes.
    now = [0.0]
    milestones = Milestones(lambda: now[0])
    milestones.line(Progress("documents", 0, 10, "", None))
    now[0] = 60.0
    line = milestones.line(Progress("documents", 9, 10, "(0.09 of 10.00 GB, 1.5 MB/s)", 6600.0))
    assert line == "documents: 9 of 10 (0.09 of 10.00 GB, 1.5 MB/s), about 110 min left"
    # Nine are done at once when a build goes on: the tenth takes as long as it takes.
    now = [0.0]
    milestones = Milestones(lambda: now[0])
    milestones.line(Progress("documents", 0, 10, "", math.inf))
    now[0] = 60.0
    assert milestones.line(Progress("documents", 9, 10, "(9.00 of 10.00 GB)", math.inf)) == "documents: 9 of 10 (9.00 of 10.00 GB)"
