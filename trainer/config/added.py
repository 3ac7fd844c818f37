"""Fields that came later: where one has the value that every run had before it came, no digest holds it.

So a run of before keeps its digest, and nothing is trained again because a choice got a name. With any other value the field is in every
digest, like all the others. A field is named in the table by the commit that adds it, and stays there.
"""

from typing import Any

ADDED_LATER: dict[str, bool | int | float | str | None] = {
    "attend_within_documents": True,
    "global_attention_every": None,
    "attention_gate": False,
    "post_norms": False,
    "embedding_scale": 1.0,
    "initializer_cutoff": None,
    "experts": None,
    "expert_kernel": "auto",
    "expert": 1,
    "context": 1,
    "step_stall_seconds": 180.0,
    "save_stall_seconds": 900.0,
    "restore_stall_seconds": 900.0,
    "recovery": None,
    "buffer_documents": None,
    "packing": "chunk",
    "loss_on": "all",
    "max_adam_grad_norm": None,
}
"""Field → what all runs of before had. The name must be that of one field in the whole configuration, and no component's."""


def without_added(settings: Any) -> Any:
    """Settings as JSON, without the fields of the table that have their value of before."""
    if isinstance(settings, dict):
        return {name: without_added(value) for name, value in settings.items() if not _is_as_before(name, value)}
    if isinstance(settings, list | tuple):
        return [without_added(value) for value in settings]
    return settings


def _is_as_before(name: str, value: Any) -> bool:
    """1 is not True here: a component of that name, with a share of one percent, would be another thing."""
    return name in ADDED_LATER and type(value) is type(ADDED_LATER[name]) and value == ADDED_LATER[name]
