"""Print a page: `python -m tests.trainer.model.parity_table > docs/lab/parity.md`. Needs the extra `parity`."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.trainer.model.parity import DIRECTIONS, Case, cases, measure

ABOVE = """\
# Parity with transformers

Printed by `python -m tests.trainer.model.parity_table > docs/lab/parity.md`, which needs `pip install -e '.[parity]'`.

The decoder beside `transformers` 5.23 (`LlamaForCausalLM`, `Qwen3ForCausalLM`, `AfmoeForCausalLM`, PyTorch 2.13 on a CPU, eager attention):
float32, random weights, gains of all norms between 0.5 and 1.5, logits that spread by more than 0.5, two layers (AFMoE: nine, with 2 or 3
of 8 experts and biases of the router up to 0.2), d_model 128, 8 query heads, so that only a head_dim of 16 makes the heads as wide as the
stream. Each row is the larger of both ways through a folder: exported by us and loaded by them, saved by them and imported by us. Demanded
are 1e-4 (logits, absolute) and 1e-3 (gradients of the mean cross-entropy, the largest difference over the largest gradient, in the worst
weight).

| family | query heads a kv head | head_dim | RoPE | head | window | logits, largest difference | gradients, relative |
|---|---|---|---|---|---|---|---|"""
BELOW = """
`tests/trainer/model/test_parity.py` holds these demands, and compares the documents of a packed row with each document alone. Where
PyTorch is not installed that test is skipped. The goldens in `tests/trainer/model/goldens/` still check imports, logits and gradients.
`make_goldens.py` made them: folders as `save_pretrained` leaves them, with what `transformers` computed."""


def page() -> Iterator[str]:
    """The page in pieces; a row a model, the larger of both directions."""
    yield ABOVE
    for case in cases():
        with TemporaryDirectory() as folder:
            both = [measure(case, direction, Path(folder) / direction) for direction in DIRECTIONS]
        logits = max(one.logits for one in both)
        gradients = max(one.gradients for one in both)
        yield f"{settings(case)} {logits:.1e} | {gradients:.1e} |"
    yield BELOW


def settings(case: Case) -> str:
    """A row's cells before those that are measured."""
    head = "tied" if case.tied else "untied"
    return f"| {case.family} | {case.group} | {case.head_dim} | {case.rope} | {head} | {case.window or '–'} |"


def main() -> None:
    """Measure every case."""
    for piece in page():
        print(piece, flush=True)


if __name__ == "__main__":
    main()
