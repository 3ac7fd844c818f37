"""Where the values of Marin 32B come from."""

from phasewise.flows.recipes.marin.notes import BISON_FILE, EXP1295, EXP1380, EXP1388, EXP1390, EXP1395, MANTIS_FILE, R32
from phasewise.flows.recipes.marin.sources import code, common, ours, prose
from phasewise.flows.recipes.provenance import RecordSources, Sources

COMMON: Sources = {
    **common(EXP1295, R32),
    "stability.max_grad_norm": code(f"{EXP1295}, and 0.2 in the files of the phases after it; {R32}, Optimizer & Schedule"),
    "stability.max_update_norm": code(f"{EXP1295}; {R32}, Clip Update Norm"),
    "stability.skip_step": code(f"{EXP1295}: skip_bad_steps=True"),
    "evaluation.benchmarks": ours("the 32B's inline evaluation was off; these are the ones of the 8B"),
    "instrumentation.layer_norms_every": code(f"{EXP1295}: norms watched at every step"),
}


def run_of(place: str) -> Sources:
    """A phase whose settings are in a file of its own."""
    fields = ("start", "stop_step", "learning_rate", "optimizer", "slice")
    return {**{field: code(place) for field in fields}, "start.declares": COMMON["start.declares"]}


ASKS_ABOUT_ORDER: Sources = {
    **run_of(BISON_FILE),
    "name": ours("a branch that the record does not have"),
    "branch": ours("a branch that the record does not have"),
    "mixture": ours("Bison's without the leaked bundle, and sorted mathematics"),
    "order.first_step": ours("the order begins with the branch"),
}

SOURCES_32B = RecordSources(
    COMMON,
    {
        "phase-1": {
            "stability.max_update_norm": prose(f"{R32}, Clip Update Norm: added at 72,233, off from about 74,000"),
            "stability.max_grad_norm": prose(f"{R32}, Tightened max grad norm clipping: 0.2 from 56.4k on; the final code has 0.2 alone"),
            "stability.max_update_rms": code(f"{EXP1295}, comments"),
            "order.cut_blocks": ours("the 7,680s cut a block, which is carried"),
        },
        "qk-norm": {
            **run_of(EXP1395),
            "stability.max_update_norm": code(EXP1395),
            "model.qk_norm": code(EXP1395),
        },
        "bison": {**run_of(BISON_FILE), "mixture": code(BISON_FILE)},
        "bison-clean": ASKS_ABOUT_ORDER,
        "bison-clean-feistel": {**ASKS_ABOUT_ORDER, "order.permutation": ours("what bison-clean is compared with")},
        "mantis": {
            **run_of(MANTIS_FILE),
            "mixture": code(MANTIS_FILE),
            "order.permutation": code(f"{MANTIS_FILE}; {R32}, Attempt 2"),
        },
        "necromancy": {
            **run_of(EXP1390),
            "stability.max_update_norm": code(EXP1390),
            "stop_step": prose(f"{R32}, Training Phase Overview: about 82,000"),
            "start.graft": code(f"{EXP1390}; {R32}, Necromancy Restart"),
        },
        "muon": {
            **run_of(EXP1380),
            "stop_step": prose("index of public runs: about 86,000"),
            "start.fresh": ours("another optimizer cannot take over the state of AdamW"),
            "optimizer": code(EXP1380),
        },
        "nadamw": {
            **run_of(EXP1388),
            "stop_step": ours("not recorded; phase 1's end"),
            "start.fresh": ours("another optimizer does not take over the state of AdamW"),
            "optimizer": code(EXP1388),
        },
        "bison-flat": {
            **run_of("Marin experiment code, bison-flat"),
            "stop_step": ours("not recorded; Bison's end"),
            "mixture": code(BISON_FILE),
        },
    },
)
