"""Inputs of the evaluation benchmark: a model's folder, and requests as JSON lines. Items are real if the benchmarks
are available.

PEERS_BENCHDATA names the folder of the benchmarks. Without the variable, synthetic items have equal shapes.
"""

import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.train_step_process import MODEL
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.tasks.report.export import tokenizer_files
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.model.hugging_face import write_folder
from phasewise.trainer.model.params import init_params

EVALUATED = MODEL.but(seq_len=2048)
"""The train step's model, with rows of 2,048."""
LETTERS = "ABCD"


def write_inputs(folder: Path, *, items: int, generated: int, new_tokens: int) -> dict[str, int]:
    arc, gsm8k, mmlu = list(arc_easy(items)), list(gsm8k_few_shot(generated, new_tokens)), list(mmlu_few_shot(items))
    asked = {"arc_easy": arc, "gsm8k": gsm8k, "mmlu": mmlu}
    texts = [str(text) for requests in asked.values() for request in requests[:4000] for text in request[:1]]
    train_tokenizer([texts], MODEL.vocab_size, folder / "tokenizer.json")
    tokenizer = tokenizer_files(folder / "tokenizer.json", EVALUATED.seq_len)
    write_folder(folder / "model", init_params(0, EVALUATED), EVALUATED, tokenizer=tokenizer)
    for name, requests in asked.items():
        write_json(folder / "requests" / f"{name}.json", requests)
    return {name: len(requests) for name, requests in asked.items()}


def arc_easy(items: int) -> Iterator[tuple[str, str]]:
    for row in _rows("arc_easy/test.jsonl", items) or _made_rows(items):
        for choice in row["choices"]["text"]:
            yield f"Question: {row['question']}\nAnswer:", f" {choice}"


def gsm8k_few_shot(items: int, new_tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    rng = random.Random(0)
    shots = _rows("gsm8k/train.jsonl", 7_473) or _made_problems(500)
    for row in _rows("gsm8k/test.jsonl", items) or _made_problems(items):
        examples = "".join(f"Question: {shot['question']}\nAnswer: {shot['answer']}\n\n" for shot in rng.sample(shots, 5))
        yield f"{examples}Question: {row['question']}\nAnswer:", {"until": ["Question:", "</s>"], "max_gen_toks": new_tokens}


def mmlu_few_shot(items: int) -> Iterator[tuple[str, str]]:
    """(context of five examples of the subject, letter) of every choice, as lm-eval's `mmlu_*`."""
    questions = _rows("mmlu/test.jsonl", items) or _made_questions(items)
    shots: dict[str, list[str]] = {}
    for row in _rows("mmlu/dev.jsonl", 10_000) or _made_questions(50):
        shots.setdefault(row["subject"], []).append(f"{_question(row)} {LETTERS[row['answer']]}\n\n")
    for row in questions:
        subject = row["subject"].replace("_", " ")
        head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        context = head + "".join(shots[row["subject"]][:5]) + _question(row)
        yield from ((context, f" {letter}") for letter in LETTERS)


def _question(row: dict[str, Any]) -> str:
    choices = "".join(f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, row["choices"], strict=True))
    return f"{row['question'].strip()}\n{choices}Answer:"


def _rows(name: str, count: int) -> list[dict[str, Any]]:
    folder = os.environ.get("PEERS_BENCHDATA")
    if folder is None or not (path := Path(folder) / name).exists():
        return []
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]


def _made_rows(items: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [{"question": _words(rng, 18), "choices": {"text": [_words(rng, rng.randint(1, 8)) for _ in LETTERS]}} for _ in range(items)]


def _made_problems(items: int) -> list[dict[str, Any]]:
    rng = random.Random(2)
    return [{"question": _words(rng, 45), "answer": _words(rng, 55)} for _ in range(items)]


def _made_questions(items: int) -> list[dict[str, Any]]:
    rng = random.Random(3)
    made = ((_words(rng, 25), [_words(rng, 6) for _ in LETTERS], rng.randrange(4)) for _ in range(items))
    return [
        {"subject": f"subject_{number % 5}", "question": question, "choices": choices, "answer": answer}
        for number, (question, choices, answer) in enumerate(made)
    ]


def _words(rng: random.Random, count: int) -> str:
    syllables: Sequence[str] = ("ka", "lo", "mi", "nu", "pe", "ri", "so", "ta", "ve", "zo")
    return " ".join("".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(count))
