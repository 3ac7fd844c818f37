"""What can go wrong, by name.

Every message says what was required, what was found, where, and what to do. The command line prints the message alone, without a
traceback, and exits with `exit_code`.
"""


class PhasewiseError(Exception):
    """A refusal with its reason."""

    exit_code = 1


class ConfigError(PhasewiseError):
    """The configuration or the command cannot be used as written."""

    exit_code = 2


class RecipeError(ConfigError):
    """A recipe was found and is refused for what is written in it, or cannot be run as it was asked for."""

    exit_code = 1


class DataError(PhasewiseError):
    """A source, a cache or a manifest is not what it claims to be."""


class VerdictError(PhasewiseError):
    """The data or the model did not pass judgement, or nobody judged it."""


class WaitsForPerson(VerdictError):
    """A verdict that a person may let pass, and of which nobody has decided yet.

    Attributes:
        verdict: its file.
    """

    def __init__(self, message: str, verdict: str) -> None:
        super().__init__(message, verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        return str(self.args[0])


class CheckpointError(PhasewiseError):
    """A checkpoint is missing, damaged, or does not fit the run that wants it."""


class EvaluationError(PhasewiseError):
    """A model gave no answer that a score could rest on."""


class TrainingError(PhasewiseError):
    """The trainer process ended without a result."""


class HostMissing(PhasewiseError):
    """A host of the run did not come: all are started again."""

    exit_code = 5


class TakenOver(PhasewiseError):
    """A later trainer has the run's folder: this one must write nothing more."""

    exit_code = 6


class StorageError(PhasewiseError):
    """A file could not be written or read: the disk is full, or may only be read."""

    exit_code = 7


class TrainingDiverged(PhasewiseError):
    """The loss or the gradients are no longer finite, or the loss lies above the recipe's limit."""

    exit_code = 3


class AsksPerson(TrainingDiverged):
    """The same, and the recipe asks a person, who has not decided yet."""

    exit_code = 8
