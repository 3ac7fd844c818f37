"""The folder of a run: every name in it is said here, and nowhere else."""

from dataclasses import dataclass
from pathlib import Path

from phasewise.trainer.base.storage import as_path

METRICS_NAME = "metrics.jsonl"
RESULT_NAME = "result.json"
EVENTS_NAME = "events.jsonl"
CHECKPOINTS_NAME = "checkpoints"
RUN_NAME = "run.json"
LOG_NAME = "trainer.log"
CACHES_NAME = "caches.json"
SPENT_NAME = "spent.jsonl"
LIFE_NAME = "life.json"
CONDITIONS_NAME = "conditions.json"
HEARTBEAT_NAME = "heartbeat"
TOKEN_NAME = "token.json"
LOCK_NAME = "lock"
OWNER_NAME = "launcher.lock"
PASSED_OVER_NAME = "passed_over.json"
QUESTION_NAME = "recovery.json"
ROLL_CALL_NAME = "roll-call"
EVALUATION_NAME = "evaluation.json"
TAKE_OVER_NAME = "lock.take-over"
WRITING_NAME = "lock.writing"
COMPILED_NAME = "compilation-cache"
ORBAX_WRITES = ".orbax-checkpoint-tmp"
"""In the name of a checkpoint that is still written."""
OF_ONE_MACHINE = frozenset({HEARTBEAT_NAME, TOKEN_NAME, LOCK_NAME, TAKE_OVER_NAME, WRITING_NAME, OWNER_NAME, ROLL_CALL_NAME, COMPILED_NAME})
SUPERSEDED = ".superseded-"
"""Between a phase's name and the digest of the run that was set aside."""


@dataclass(frozen=True)
class RunFolder:
    """Where the files of one run are. Nothing is looked at, and nothing is made.

    Attributes:
        path: the folder, on this machine or on a store.
    """

    path: Path

    @classmethod
    def at(cls, folder: str | Path) -> "RunFolder":
        """The folder that `output` of a run names."""
        return cls(as_path(folder))

    @classmethod
    def of_checkpoint(cls, checkpoint: str | Path) -> "RunFolder":
        """The folder of the run that a checkpoint is of."""
        return cls(as_path(checkpoint).parents[1])

    @property
    def run_file(self) -> Path:
        """What is trained here, every setting."""
        return self.path / RUN_NAME

    @property
    def caches(self) -> Path:
        """What the caches of the run held."""
        return self.path / CACHES_NAME

    @property
    def metrics(self) -> Path:
        """A row an update."""
        return self.path / METRICS_NAME

    @property
    def events(self) -> Path:
        """What happened to the run."""
        return self.path / EVENTS_NAME

    @property
    def spent(self) -> Path:
        """Where its time went, a line for each life."""
        return self.path / SPENT_NAME

    @property
    def life(self) -> Path:
        """What is known of the life of the trainer that goes on."""
        return self.path / LIFE_NAME

    @property
    def conditions(self) -> Path:
        """What its newest updates were computed under: device, versions, variables."""
        return self.path / CONDITIONS_NAME

    @property
    def result(self) -> Path:
        """What it came to."""
        return self.path / RESULT_NAME

    @property
    def evaluation(self) -> Path:
        """What was measured of its last checkpoint."""
        return self.path / EVALUATION_NAME

    @property
    def passed_over(self) -> Path:
        """The updates that it leaves out."""
        return self.path / PASSED_OVER_NAME

    @property
    def question(self) -> Path:
        """What its training asks a person, where its recovery is `ask`; in the form of a verdict."""
        return self.path / QUESTION_NAME

    @property
    def checkpoints(self) -> Path:
        """A folder for each saved step."""
        return self.path / CHECKPOINTS_NAME

    def checkpoint(self, step: int) -> Path:
        """The state after so many updates."""
        return self.checkpoints / str(step)

    @property
    def heartbeat(self) -> Path:
        """The trainer's sign of life."""
        return self.path / HEARTBEAT_NAME

    @property
    def trainer_lock(self) -> Path:
        """Held by the one trainer."""
        return self.path / LOCK_NAME

    @property
    def take_over_lock(self) -> Path:
        """Held while a new trainer's lock is put in the place of a silent one's."""
        return self.path / TAKE_OVER_NAME

    @property
    def writing_lock(self) -> Path:
        """Held while files are replaced or deleted: nobody takes the folder over meanwhile."""
        return self.path / WRITING_NAME

    @property
    def token(self) -> Path:
        """The number of the last trainer."""
        return self.path / TOKEN_NAME

    @property
    def launcher_lock(self) -> Path:
        """Held by the one launcher."""
        return self.path / OWNER_NAME

    @property
    def roll_calls(self) -> Path:
        """Where the hosts say that they are there, a folder for each life."""
        return self.path / ROLL_CALL_NAME

    def log(self, host: int = 0) -> Path:
        """What a host said. The first one's log repeats the last words of all others."""
        return self.path / (LOG_NAME if host == 0 else f"trainer-{host}.log")

    @property
    def tensorboard(self) -> Path:
        """The rows, as TensorBoard reads them."""
        return self.path / "tensorboard"

    @property
    def weights_and_biases(self) -> Path:
        """What Weights & Biases keeps of it."""
        return self.path / "wandb"

    @property
    def compilation_cache(self) -> Path:
        """Compiled steps, shared by all phases of the recipe."""
        return self.path.parent.resolve() / COMPILED_NAME

    def superseded(self, digest: str, number: int = 1) -> Path:
        """Where the folder goes when another run takes its place: the run it holds had this digest.

        Args:
            number: of several that were set aside with the same digest, the first is 1.
        """
        again = "" if number == 1 else f"-{number}"
        return self.path.with_name(f"{self.path.name}{SUPERSEDED}{digest[:8]}{again}")


def is_kept(name: str) -> bool:
    """Whether a file or folder of this name belongs to what a run came to. The others are of one process, one machine or one moment."""
    return not (name.startswith(".") or ORBAX_WRITES in name or name in OF_ONE_MACHINE)
