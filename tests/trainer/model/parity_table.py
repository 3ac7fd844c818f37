"""Print the table of `docs/trainer.md`: `python -m tests.trainer.model.parity_table`. Needs the extra `parity`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.trainer.model.parity import DIRECTIONS, cases, measure


def main() -> None:
    """A row a model; the larger of both directions."""
    print("| family | query heads a kv head | head_dim | RoPE | head | window | logits, largest difference | gradients, relative |")
    print("|---|---|---|---|---|---|---|---|")
    for case in cases():
        with TemporaryDirectory() as folder:
            both = [measure(case, direction, Path(folder) / direction) for direction in DIRECTIONS]
        head = "tied" if case.tied else "untied"
        window = case.window or "–"
        logits = max(one.logits for one in both)
        gradients = max(one.gradients for one in both)
        print(f"| {case.family} | {case.group} | {case.head_dim} | {case.rope} | {head} | {window} | {logits:.1e} | {gradients:.1e} |")


if __name__ == "__main__":
    main()
