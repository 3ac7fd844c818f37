"""`phasewise data generate`: documents that a model writes from seeds, as a source of a recipe."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from phasewise.flows.cli.evaluate import find_model
from phasewise.flows.cli.sample import Writing
from phasewise.flows.cli.scan import scan_paths
from phasewise.flows.cli.terminal import shown_on_terminal
from phasewise.flows.recipes.recipe import Scale
from phasewise.tasks.data.generation import DOCUMENTS, Seed, Task, generate_documents
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import as_path, parse_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

MIN_SCORE = 0.7
"""The share of an item in a document above which the document is left out, as in `phasewise scan`."""


class ModelGenerator:
    """A model of this project as a generator of text."""

    def __init__(self, model: "JaxLanguageModel", path: Path, writing: Writing) -> None:
        from phasewise.trainer.state import params_digest

        limits = {"max_gen_toks": writing.tokens or model.max_length // 2, "top_k": writing.top_k, "top_p": writing.top_p}
        self.settings = {**limits, "temperature": writing.temperature, "do_sample": writing.temperature > 0}
        self.model = model
        model.seed = writing.seed
        weights = {"checkpoint": str(path), "params_digest": params_digest(model.params)}
        self.identity: Mapping[str, Any] = {**weights, "model": model.config.model_dump(mode="json"), **self.settings, "seed": writing.seed}

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """Continue each prompt up to an end token."""
        from lm_eval.api.instance import Instance

        requests = [Instance("generate_until", {}, (prompt, self.settings), number) for number, prompt in enumerate(prompts)]
        return self.model.generate_until(requests)


def read_seeds(path: Path, kind: Literal["rephrase", "answer"], count: int | None, seed: int) -> list[Seed]:
    """Read documents of a folder or file, or questions with answers in JSON lines. `count` draws as many at random.

    Raises ConfigError for a missing file. Raises DataError for a record without a question and an answer with a number.
    """
    found: list[Seed] = []
    if kind == "rephrase":
        from phasewise.tasks.evaluation.corpus_fit import Corpus

        found = [Seed(document.where, document.text) for document in Corpus(path).documents()]
    else:
        if not path.is_file():
            raise ConfigError(f"{path}: expected a file of JSON lines with questions and answers, found none.")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = parse_json(line)
                question, answer = str(record["question"]), str(record["answer"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}, line {number}: expected a JSON object with question and answer, found {line[:80]!r}.") from error
            found.append(Seed(f"{path.name}:{number}", question, answer))
    if count is not None and count < len(found):
        found = sorted(found, key=lambda one: digest_of_json([seed, one.id]))[:count]
    return found


def generate(
    target: str,
    scale: Scale | None,
    home: str | None,
    places: tuple[str, str],
    task: Task,
    writing: Writing,
    *,
    count: int | None,
    benchmarks: str | None,
    weights: Literal["last", "ema"] = "last",
    tokenizer: str | None = None,
) -> dict[str, Any]:
    """Write the folder of generated documents, and return its provenance in the shape of `--json`. `places`: seeds and folder.

    `benchmarks`: folder with test items to search for in the output. None searches nothing.
    """
    path, out = (as_path(place).expanduser() for place in places)

    def scan(documents: Path) -> dict[int, str]:
        limits: dict[str, Any] = {"min_score": MIN_SCORE, "tokenizer": None, "workers": 1, "exclude": (), "suite": None}
        hits = scan_paths((str(documents),), benchmarks or "", home=None, **limits)["hits"]
        return {hit["document"]: f"{hit['benchmark']}, {hit['item']}" for hit in hits}

    began = time.perf_counter()
    with shown_on_terminal(), ExitStack() as stack:
        found = find_model(target, scale, home, weights, tokenizer, stack)
        seeds = read_seeds(path, task.kind, count, writing.seed)
        generator = ModelGenerator(found.open_model(), found.path, writing)
        written = generate_documents(seeds, generator, task, out, scan=scan if benchmarks else None)
    return {**written, "seconds": round(time.perf_counter() - began, 1), "file": str(out / DOCUMENTS)}


def print_generated(written: dict[str, Any]) -> None:
    """Print the number of documents, the reasons against the others, and the way into a recipe."""
    click.echo(f"{written['documents']:,} documents from {written['samples']:,} samples of {written['seeds']:,} seeds: {written['file']}")
    for reason, number in written["left_out"].items():
        click.echo(f"  {number:,} left out: {reason}")
    for item in written["test_items"]:
        click.echo(f"  test item: {item}")
    if not written["searched"]:
        click.echo("  not searched for test items: give --benchmarks DIR. The check of a recipe's data searches its caches in any case.")
    options = ', conversation=Conversation(messages="messages", template=…)' if written["task"]["kind"] == "answer" else ""
    click.echo(f'  in a recipe: text("{written["folder"]}", "{DOCUMENTS}", format="jsonl"{options})')
