"""What a benchmark of a suite is: how lm-eval runs it, what of it counts, and which files it needs. Data alone."""

from typing import Any

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen

SHOTS_IN_DEFINITION = "definition"
"""The examples are written in lm-eval's own definition, and need no file."""


class Rows(Frozen):
    """The rows of a file whose field has one of these values."""

    field: str
    values: tuple[str | int, ...]


class Part(Frozen):
    """One task of lm-eval; most benchmarks are one.

    Attributes:
        task: lm-eval's name of it.
        include: its file below `lm_eval/tasks`; empty where the benchmark is defined here.
        file: its local file below the folder of benchmarks. `{split}` is the name of a split.
        rows: those of the file that belong to it; None is all.
        split: of its items, where it is not that of the benchmark.
    """

    task: str
    include: str = ""
    file: str
    split: str = ""
    rows: Rows | None = None


class Definition(Frozen):
    """A benchmark.

    Attributes:
        metric: the one that counts, by lm-eval's name. `pass` is counted here: the program passed its tests.
        filter: lm-eval's name of what is taken out of the model's text before it is compared; the others of a task do not count.
        split: the split of its items, by lm-eval's name.
        shots_split: the split that examples come from. None: it has none, and lm-eval would take them from the items themselves.
        shots_rows: the rows of that split that are examples; None is all.
        settings: more of the definition than lm-eval's file has, or all of it.
        local_settings: all of the definition where its items come from a folder: in place of lm-eval's file, for files of another form.
        fields: those of a row that are needed, where the others have no one type; empty is all.
        modules: Python modules that the definition imports.
        on_hub: whether it can be had from the hub.
        remark: how it differs from what others measure under this name.
    """

    name: str
    parts: tuple[Part, ...] = Field(min_length=1)
    metric: str
    filter: str = "none"
    split: str = "test"
    shots_split: str | None = "train"
    shots_rows: Rows | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    local_settings: dict[str, Any] = Field(default_factory=dict)
    fields: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    on_hub: bool = True
    remark: str = ""

    @property
    def runs_code(self) -> bool:
        """Whether programs are run that the model wrote."""
        return self.metric == "pass"


class Asked(Frozen):
    """A line of a suite: a benchmark with so many examples in the prompt.

    Attributes:
        length: tokens of an item, where it is made for the model at any length; its name then has that in place of the examples.
    """

    benchmark: str
    shots: int = Field(ge=0)
    source: str
    length: int | None = Field(default=None, gt=0)

    @property
    def label(self) -> str:
        """The name of its result: `arc_easy:10`, `niah:8192`."""
        return f"{self.benchmark}:{self.shots if self.length is None else self.length}"


class Suite(Frozen):
    """Benchmarks that are measured together, in this order."""

    name: str
    about: str
    asked: tuple[Asked, ...]
