"""How a benchmark was put to a model: what must be equal before two scores are compared."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from phasewise.trainer.base.identity import digest_of_json


class Setting(TypedDict):
    """What decides a score beside the model.

    Attributes:
        version: of the benchmark's definition, as lm-eval gives it.
        shots: examples in the prompt.
        filter: lm-eval's name of what was taken out of the model's text.
        items: how many items there are.
        asked: how many of them were asked. Where these are fewer, the score is that of the first ones.
        items_digest: of the items, in their order.
        prompts_digest: of what the model read, in the same order: examples, instructions and choices are in it.
        precision: in which the model was computed.
    """

    version: str
    shots: int
    filter: str
    items: int
    asked: int
    items_digest: str
    prompts_digest: str
    precision: str


def read_setting(found: Mapping[str, Any], name: str, *, filter_name: str, precision: str) -> Setting:
    """The setting of one benchmark.

    Args:
        found: what lm-eval's `evaluate` gave, with its record of each item.
    """
    samples: Sequence[Mapping[str, Any]] = [sample for sample in found["samples"][name] if sample["filter"] == filter_name]
    asked = found["n-samples"][name]
    return Setting(
        version=str(found["versions"][name]),
        shots=int(found["n-shot"][name]),
        filter=filter_name,
        items=int(asked["original"]),
        asked=int(asked["effective"]),
        items_digest=digest_of_json([sample["doc_hash"] for sample in samples]),
        prompts_digest=digest_of_json([sample["prompt_hash"] for sample in samples]),
        precision=precision,
    )
