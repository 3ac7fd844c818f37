"""Print a page: `python -m tests.trainer.model.parity_table > docs/lab/parity.md`. Needs the extra `parity`."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.trainer.model.parity import DIRECTIONS, Case, cases, measure

ABOVE = """\
# Parity with transformers

`python -m tests.trainer.model.parity_table > docs/lab/parity.md` prints this page. It needs `pip install -e '.[parity]'`.

The table compares the decoder with `transformers` 5.23 (`LlamaForCausalLM`, `Qwen3ForCausalLM`, `AfmoeForCausalLM`, PyTorch 2.13 on a CPU, eager
attention). Weights are random float32, norm gains are between 0.5 and 1.5, and logits spread by more than 0.5. Models have two layers, d_model 128 and
8 query heads. AFMoE has nine layers, 2 or 3 of 8 experts, and router biases up to 0.2.

Each row has the larger difference of two directions: exported by Phasewise and loaded by `transformers`, saved by `transformers` and imported by
Phasewise. Limits are 1e-4 for logits (absolute) and 1e-3 for gradients of the mean cross-entropy (largest difference over largest gradient, worst weight).

| family | query heads a kv head | head_dim | RoPE | head | window | logits, largest difference | gradients, relative |
|---|---|---|---|---|---|---|---|"""
BELOW = """
`tests/trainer/model/test_parity.py` enforces these limits, and compares packed documents with separate documents. The test is skipped without PyTorch.
The goldens in `tests/trainer/model/goldens/` check imports, logits and gradients without PyTorch. `make_goldens.py` created them with `save_pretrained`
and the outputs of `transformers`."""


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
