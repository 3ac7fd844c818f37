"""Generated text as a source: documents that a model rephrases, and sampled answers with the right result.

The folder has `documents.jsonl`, with the seed and the sample of each document, and `provenance.json`, which is sealed and written last.
The output is searched for test items, not only the seeds: a model can write an item that no seed has. Rejection sampling with a checkable
reward is the first round of expert iteration (Anthony et al., "Thinking Fast and Slow with Deep Learning and Tree Search", 2017).
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from phasewise.tasks.progress import advance
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_file, digest_of_json, write_sealed

DOCUMENTS, PROVENANCE = "documents.jsonl", "provenance.json"
COPIED_WORDS, REPEATED_WORDS = 8, 4
SEEDS_AT_ONCE = 64
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Generator(Protocol):
    """A writer of text. `identity` has everything that decides its output."""

    identity: Mapping[str, Any]

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """Continue each prompt. Equal prompts in a call are different samples."""
        ...


class Seed(NamedTuple):
    """A document to rephrase, or a question with its reference answer."""

    id: str
    text: str
    answer: str | None = None


class Task(Frozen):
    """How seeds become documents.

    Attributes:
        kind: `rephrase` writes the text of a document. `answer` writes conversations of question and answer, and keeps right answers.
        prompt: text before the continuation, with `{text}` for the seed.
        samples: continuations per seed.
        max_copied: largest share of runs of eight words that a rephrased text may share with its seed.
        max_repeated: largest share of runs of four words that appear earlier in the text.
        min_words: fewest words of a rephrased text.
    """

    kind: Literal["rephrase", "answer"]
    prompt: str
    samples: int = Field(default=1, ge=1)
    max_copied: float = Field(default=0.8, ge=0, le=1)
    max_repeated: float = Field(default=0.3, ge=0, le=1)
    min_words: int = Field(default=20, ge=1)

    def reason_against(self, text: str, seed: Seed) -> str | None:
        """Return why a continuation is left out. None keeps it."""
        words = text.split()
        if not words:
            return "empty"
        if self.kind == "answer":
            return None if result_of(text) == result_of(seed.answer or "") is not None else "wrong result"
        if len(words) < self.min_words:
            return "too short"
        runs = _runs(words, REPEATED_WORDS)
        if runs and 1 - len(set(runs)) / len(runs) > self.max_repeated:
            return "repetition"
        runs, known = _runs(words, COPIED_WORDS), set(_runs(seed.text.split(), COPIED_WORDS))
        if runs and sum(run in known for run in runs) / len(runs) > self.max_copied:
            return "copy of its seed"
        return None


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def result_of(answer: str) -> str | None:
    """Return the number after `####` (GSM8K), or else the last number, without separators. None without a number."""
    numbers = NUMBER.findall(answer.rpartition("####")[2]) or NUMBER.findall(answer)
    if not numbers:
        return None
    number = numbers[-1].replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def generate_documents(
    seeds: Iterable[Seed], generator: Generator, task: Task, out: Path, *, scan: Callable[[Path], Mapping[int, str]] | None
) -> dict[str, Any]:
    """Write a folder with the generated documents, whole or not at all, and return its provenance.

    Args:
        scan: maps the rows of a file that contain test items to the names of the items. These documents are left out. None searches
            nothing, which the provenance states.

    Raises:
        ConfigError: the folder exists, or the prompt lacks `{text}`. DataError: no seed, or no document is kept.
    """
    if out.exists():
        raise ConfigError(f"{out}: expected no file and no folder of this name, found one. Give another folder.")
    if "{text}" not in task.prompt:
        raise ConfigError(f"the prompt: expected {{text}} where the seed stands, found {task.prompt!r}.")
    chosen = list(seeds)
    if not chosen:
        raise DataError("generated text needs at least one seed, found none.")
    partial = out.with_name(f".{out.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    reasons: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    try:
        for start in range(0, len(chosen), SEEDS_AT_ONCE):
            advance("generate", start, len(chosen), "seeds")
            batch = [seed for seed in chosen[start : start + SEEDS_AT_ONCE] for _ in range(task.samples)]
            texts = generator.generate([task.prompt.replace("{text}", seed.text) for seed in batch])
            seen: set[tuple[str, str]] = set()
            for number, (seed, text) in enumerate(zip(batch, (text.strip() for text in texts), strict=True)):
                reason = "repeated sample" if (seed.id, text) in seen else task.reason_against(text, seed)
                seen.add((seed.id, text))
                if reason:
                    reasons[reason] += 1
                    continue
                turns = [{"role": "user", "content": seed.text}, {"role": "assistant", "content": text}]
                content = {"text": text} if task.kind == "rephrase" else {"messages": turns}
                rows.append({**content, "seed": seed.id, "sample": number % task.samples})
        documents = partial / DOCUMENTS
        documents.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        hits = dict(scan(documents)) if scan and rows else {}
        reasons |= Counter({"test item": len(hits)} if hits else {})
        rows = [row for number, row in enumerate(rows) if number not in hits]
        if not rows:
            raise DataError(f"no generated document was kept of {len(chosen)} seeds: {dict(reasons)}. Change the prompt or the model.")
        documents.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        provenance = {
            "task": task.model_dump(mode="json"),
            "generator": dict(generator.identity),
            "seeds": len(chosen),
            "seeds_digest": digest_of_json([list(seed) for seed in chosen]),
            "samples": len(chosen) * task.samples,
            "documents": len(rows),
            "left_out": dict(sorted(reasons.items())),
            "searched": scan is not None,
            "test_items": sorted(set(hits.values())),
            "documents_digest": digest_of_file(documents),
        }
        write_sealed(partial / PROVENANCE, provenance)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {**provenance, "folder": str(out)}
