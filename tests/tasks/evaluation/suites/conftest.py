"""A model that answers as it is told, and a folder of made-up items in the forms of real benchmarks."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from tokenizers import Tokenizer

from phasewise.tasks.evaluation.benchmark_definitions import Asked, Suite
from phasewise.tasks.evaluation.suite import Measured, Options, run_suite
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params

Score = Callable[[str, str], float]
Say = Callable[[str], str]


class ScriptedModel(LM):
    """A language model that keeps its requests; `score` is the log-likelihood of (context, continuation)."""

    def __init__(self, params: Params, config: ModelConfig, tokenizer: Tokenizer, score: Score, say: Say) -> None:
        super().__init__()
        self.params, self.config, self.tokenizer = params, config.but(seq_len=4096), tokenizer
        self.begin_of_text, self.ends, self.begins_texts, self.seed = 0, (1,), True, 0
        self.max_length = self.trained_length = self.config.seq_len
        self.num_contexts = self.num_cut_contexts = 0
        self._score, self._say = score, say
        self.asked: list[tuple[Any, ...]] = []

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        self._keep(requests)
        return [(self._score(*request.args), False) for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        raise NotImplementedError

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        self._keep(requests)
        return [self._say(request.args[0]) for request in requests]

    def _keep(self, requests: list[Instance]) -> None:
        self.asked += [request.args for request in requests]
        self.num_contexts += len(requests)


Scripted = Callable[..., ScriptedModel]


@pytest.fixture
def scripted(params: Params, config: ModelConfig, tokenizer: Tokenizer) -> Scripted:
    def build(score: Score = lambda _context, _text: -1.0, say: Say = lambda _context: "", weights: Params = params) -> ScriptedModel:
        return ScriptedModel(weights, config, tokenizer, score, say)

    return build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks"
    path.mkdir()
    return path


class Bench(NamedTuple):
    scripted: Scripted
    folder: Path

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        path = self.folder / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def run(self, model: Any, *labels: str, limit: int | None = None, allow_code: bool = False, **benchmarks: Path | None) -> Measured:
        asked = tuple(Asked(benchmark=label.partition(":")[0], shots=int(label.partition(":")[2]), source="made up") for label in labels)
        how = Options(benchmarks.get("benchmarks", self.folder), limit, allow_code)
        suite = Suite(name="made", about="", asked=asked)
        return run_suite(suite, model, how, place=self.folder.parent / "model", weights="last", about={})


@pytest.fixture
def bench(scripted: Scripted, folder: Path) -> Bench:
    return Bench(scripted, folder)


def riddles(count: int, *, answer: int = 0) -> list[dict[str, Any]]:
    """Items in the form of ARC, of three choices of which the first is longest."""
    choices = {"text": ["a very old boot", "hat", "nest"], "label": ["A", "B", "C"]}
    return [{"question": f"Where does wren {number} live?", "choices": choices, "answerKey": "ABC"[answer]} for number in range(count)]


def sums(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {number} + 1?", "answer": f"It is {number} + 1.\n#### {number + 1}"} for number in range(count)]
