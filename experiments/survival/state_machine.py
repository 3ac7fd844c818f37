"""A state machine of faults in any order: each run ends in the promised result or in a named error."""

import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from experiments.survival.file_faults import Killed
from experiments.survival.one_process import VARIANTS, Cancelled, Expected, World, check_result, terminate, world_in
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.identity import read_sealed
from phasewise.trainer.checkpoints.files import saved_steps
from phasewise.trainer.config import RunConfig

OPERATIONS = st.integers(1, 90)
"""A life of the tiny phase changes files about 80 times."""
FRACTIONS = st.floats(0, 1, allow_nan=False)
HOW = st.sampled_from(("flip", "cut", "remove"))
AGAIN = st.integers(0, 2)
RunFile = Callable[[], Path | None]


class Survival(RuleBasedStateMachine):
    """The folder of one run and the faults that happen to it. `counts` has the outcomes of every rule."""

    place: ClassVar[Path]
    originals: ClassVar[dict[str, Path]]
    expected: ClassVar[Expected]
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self.world: World = self._stack.enter_context(world_in(self.place, self.originals))
        self.variant, self.mesh = VARIANTS[0], 1
        self.meshes: set[int] = set()
        self.damage: set[str] = set()

    def teardown(self) -> None:
        self._stack.close()

    @initialize(variant=st.sampled_from(VARIANTS))
    def choose(self, variant: str) -> None:
        self.variant = variant

    def _train(self, rule_name: str) -> dict[str, Any] | None:
        result = None
        written = self._written()
        if written is None or written != self.world.run(self.variant, self.mesh).digest:
            self.meshes = set()
        self.meshes.add(self.mesh)
        is_faulty = self.world.faults._action != "nothing"  # pyright: ignore[reportPrivateUsage]  # the experiment owns both classes
        try:
            result = self.world.launch(self.variant, self.mesh)
        except Killed:
            ended = "killed"
        except Cancelled:
            ended = "cancelled"
        except PhasewiseError as error:
            ended = type(error).__name__
            self._check_refusal(error, may_refuse=self.world.faults.has_struck and is_faulty)
        else:
            ended = "done"
            self.world.faults.disarm()
            check_result(self.world, self.variant, self.meshes, result, self.expected)
        finally:
            self.world.faults.disarm()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.counts[f"{rule_name}: {ended}"] += 1
        print(f"step {self.counts.total()} {rule_name}: {ended}", file=sys.stderr)
        return result if ended == "done" else None

    def _begin_again(self, wanted: int) -> None:
        """Delete the folder of a finished phase, one time in three: otherwise most faults meet a finished run."""
        if wanted == 0 and not self.damage and (self.world.folder / "result.json").exists():
            shutil.rmtree(self.world.folder)
            self.meshes = set()
            self.counts["(begun again)"] += 1

    def _check_refusal(self, error: PhasewiseError, *, may_refuse: bool) -> None:
        assert "; see " not in str(error), f"ended without a reason: {error}"
        assert self.damage or may_refuse, f"refused without a reason: {error}"

    def _written(self) -> str | None:
        """The digest of the run in the folder."""
        try:
            return RunConfig.model_validate(read_sealed(self.world.folder / "run.json")).digest
        except (OSError, ValueError):
            return None

    @rule()
    def train(self) -> None:
        self._train("train")

    @rule(at=OPERATIONS, again=AGAIN, whole=st.booleans())
    def kill(self, at: int, again: int, whole: bool) -> None:
        """Kill the trainer, and its launcher restarts it, or kill the launcher and the trainer together."""
        self._begin_again(again)
        self.world.whole_dies = whole
        self.world.faults.arm("kill", at)
        self._train("kill everything" if whole else "kill the trainer")

    @rule(at=OPERATIONS, again=AGAIN)
    def preempt(self, at: int, again: int) -> None:
        self._begin_again(again)
        self.world.faults.arm("call", at, terminate)
        self._train("preempt")

    @rule(at=OPERATIONS, again=AGAIN)
    def cancel(self, at: int, again: int) -> None:
        """Send SIGTERM, and start no further attempt."""
        self._begin_again(again)

        def stop() -> None:
            if self.world.faults.has_struck:
                raise Cancelled

        self.world.faults.arm("call", at, terminate)
        self.world.check = stop  # pyright: ignore[reportAttributeAccessIssue]  # for this world only
        try:
            self._train("cancel")
        finally:
            del self.world.check

    @rule(at=OPERATIONS, again=AGAIN)
    def fill_the_disk(self, at: int, again: int) -> None:
        self._begin_again(again)
        self.world.faults.arm("full", at)
        self._train("fill the disk")

    @rule(at=OPERATIONS, again=AGAIN)
    def make_the_home_read_only(self, at: int, again: int) -> None:
        self._begin_again(again)
        self.world.faults.arm("read only", at)
        self._train("read only")

    @rule(at=OPERATIONS, again=AGAIN)
    def run_twice_at_once(self, at: int, again: int) -> None:
        """Start a second trainer: the lease refuses it, and the first trainer continues."""
        self._begin_again(again)
        codes: list[int] = []

        def start_second() -> None:
            if self.world.is_held():  # otherwise the second trainer may train
                codes.append(self._second(is_first_alive=True))

        self.world.faults.arm("call", at, start_second)
        self._train("twice")
        assert 0 not in codes

    @rule(at=OPERATIONS, again=AGAIN)
    def be_taken_over(self, at: int, again: int) -> None:
        """Suspend the first trainer, finish the phase with a second trainer, and resume the first: no file may change."""
        self._begin_again(again)
        codes: list[int] = []
        self.world.faults.arm("call", at, lambda: codes.append(self._second(is_first_alive=False)))
        self._train("taken over")
        assert self.damage or all(code in (0, 1) for code in codes)

    def _second(self, *, is_first_alive: bool) -> int:
        if not (self.world.folder / "run.json").exists():
            return 1
        return self.world.second(is_first_alive=is_first_alive)

    @rule()
    def change_the_mesh(self) -> None:
        self.mesh = 3 - self.mesh
        self._train("another mesh")

    @rule(variant=st.sampled_from(VARIANTS))
    def switch(self, variant: str) -> None:
        """Change the phase: the launcher archives the files of the earlier phase."""
        self.variant = variant
        self._train("switch")

    @rule(back=st.integers(1, 3))
    def relaunch_from_an_older_checkpoint(self, back: int) -> None:
        """Delete the newest checkpoints and the result."""
        steps = saved_steps(self.world.folder / "checkpoints")
        for step in steps[-back:] if len(steps) > back else []:
            shutil.rmtree(self.world.folder / "checkpoints" / str(step))
        (self.world.folder / "result.json").unlink(missing_ok=True)
        self._train("from an older checkpoint")

    @rule(which=FRACTIONS, where=FRACTIONS, how=HOW)
    def damage_a_file(self, which: float, where: float, how: str) -> None:
        """Damage a file of the run's folder, the verdict or a shard of a cache. Other tests flip single bytes of shards."""
        files = sorted(path for path in self.world.folder.rglob("*") if path.is_file())
        files += [self.world.root / "verdict.json", *sorted(self.world.root.glob("tokens/*/*.bin"))]
        path = files[min(int(which * len(files)), len(files) - 1)]
        content = path.read_bytes()
        if how == "remove":
            path.unlink()
        elif how == "cut" or path.suffix == ".bin":
            path.write_bytes(content[: int(where * len(content)) - 1 if content else 0])
        elif content:
            at = min(int(where * len(content)), len(content) - 1)
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        self.damage.add(str(path.relative_to(self.world.root)))
        self.counts[f"damage ({how})"] += 1

    @precondition(lambda self: self.damage)
    @rule()
    def mend(self) -> None:
        """Follow the error message: restore the data and the verdict, and delete the run's folder."""
        for name, folder in self.originals.items():
            shutil.rmtree(self.world.caches[name])
            shutil.copytree(folder, self.world.caches[name])
        self.world.judge()
        if self.world.folder.exists():
            shutil.rmtree(self.world.folder)
        self.damage = set()
        self.counts["mend"] += 1
        assert self._train("train after mending") is not None
