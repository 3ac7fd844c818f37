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


class CheckpointError(PhasewiseError):
    """A checkpoint is missing, damaged, or does not fit the run that wants it."""


class EvaluationError(PhasewiseError):
    """A model gave no answer that a score could rest on."""


class TrainingError(PhasewiseError):
    """The trainer process ended without a result."""


class TrainingDiverged(PhasewiseError):
    """The loss or the gradients are no longer finite."""

    exit_code = 3
