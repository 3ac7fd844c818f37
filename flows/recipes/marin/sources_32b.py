"""Where the values of Marin 32B come from."""

from flows.recipes.marin.notes import BISON_FILE, EXP1295, EXP1380, EXP1388, EXP1390, EXP1395, MANTIS_FILE, R32
from flows.recipes.marin.sources import code, common, default, ours, prose
from flows.recipes.provenance import Provenance, RecordSources, Sources

SKIP_STEP = "Levanter's skip-step, which `skip_bad_steps=True` takes as it is: sigma 6.0 over 128 updates"
FLOOR = default("Levanter: min_lr_ratio 0.1, so 7e-5")
MIN_SAMPLES = default("Levanter: active after 64 samples")

COMMON: Sources = {
    **common(EXP1295, R32),
    "stability.max_grad_norm": code(f"{EXP1295}; {R32}, Optimizer & Schedule"),
    "stability.max_update_norm": code(f"{EXP1295}; {R32}, Clip Update Norm"),
    "stability.skip_step": default(SKIP_STEP),
    "checkpoints.every_steps": default("Levanter's permanent checkpoints: every 10,000 steps"),
    "evaluation.benchmarks": ours("the 32B's inline evaluation was off; these are the ones of the 8B"),
    "instrumentation.layer_norms_every": code(f"{EXP1295}: norms watched at every step"),
}


def limited(value: Provenance) -> Sources:
    """The clip of the update's norm, where it is on: how many values it waits for is the library's."""
    return {"stability.max_update_norm": value, "stability.max_update_norm.min_samples": MIN_SAMPLES}


def run_of(place: str) -> Sources:
    """A phase whose settings are in a file of its own."""
    fields = ("start", "stop_step", "learning_rate", "stability.max_grad_norm", "optimizer.kind", "optimizer.weight_decay", "slice")
    return {**{field: code(place) for field in fields}, "start.declares": COMMON["start.declares"]}


COOLDOWN: Sources = {
    **limited(COMMON["stability.max_update_norm"]),
    "optimizer.peak_learning_rate": code(BISON_FILE),
    "learning_rate.end": FLOOR,
    "model.sliding_window": code(EXP1395),
}

ASKS_ABOUT_ORDER: Sources = {
    **run_of(BISON_FILE),
    **COOLDOWN,
    "name": ours("a branch that the record does not have"),
    "branch": ours("a branch that the record does not have"),
    "mixture": ours("Bison's without the leaked bundle, and sorted mathematics"),
    "order.first_step": ours("the order begins with the branch"),
}

SOURCES_32B = RecordSources(
    COMMON,
    {
        "phase-1": {
            **limited(prose(f"{R32}, Clip Update Norm: added at 72,233, off from about 74,000")),
            "stability.max_grad_norm": prose(f"{R32}, Tightened max grad norm clipping: 0.2 from 56.4k on; the final code has 0.2 alone"),
            "stability.max_update_rms": code(f"{EXP1295}, comments"),
            "order.cut_blocks": ours("the 7,680s cut a block, which is carried"),
        },
        "qk-norm": {
            **run_of(EXP1395),
            **limited(code(EXP1395)),
            "model.qk_norm": code(EXP1395),
            "model.sliding_window": code(EXP1395),
        },
        "bison": {**run_of(BISON_FILE), **COOLDOWN, "mixture": code(BISON_FILE)},
        "bison-clean": ASKS_ABOUT_ORDER,
        "bison-clean-feistel": {**ASKS_ABOUT_ORDER, "order.permutation": ours("what bison-clean is compared with")},
        "mantis": {
            **run_of(MANTIS_FILE),
            **COOLDOWN,
            "mixture": code(MANTIS_FILE),
            "optimizer.peak_learning_rate": code(MANTIS_FILE),
            "order.permutation": code(f"{MANTIS_FILE}; {R32}, Attempt 2"),
        },
        "necromancy": {
            **run_of(EXP1390),
            **limited(code(EXP1390)),
            "stop_step": prose(f"{R32}, Training Phase Overview: about 82,000"),
            "start.graft": code(f"{EXP1390}; {R32}, Necromancy Restart"),
        },
        "muon": {
            **run_of(EXP1380),
            "stop_step": prose("index of public runs: about 86,000"),
            "start.fresh": ours("another optimizer cannot take over the state of AdamW"),
            "optimizer": code(EXP1380),
            "optimizer.epsilon": default("Levanter's Muon: epsilon 1e-8"),
            "optimizer.adam": default("Levanter's Adam: beta1 0.9, beta2 0.95, epsilon 1e-8"),
            "stability.skip_step": default("Levanter's Muon has none"),
            "stability.max_update_norm": default("Levanter's Muon has none"),
        },
        "nadamw": {
            **run_of(EXP1388),
            "stop_step": ours("not recorded; phase 1's end"),
            "start.fresh": ours("another optimizer does not take over the state of AdamW"),
            "optimizer": default("Levanter's NAdamW"),
            "optimizer.beta1": code(EXP1388),
            "learning_rate": default("Levanter: cosine to 0.1 of the peak, because the schedule's fields were not set"),
            "learning_rate.start": code(EXP1388),
            "stability.max_grad_norm": default("Levanter: global norm 1.0, because 0.2 was not set"),
            "stability.max_update_norm": default("Levanter: off, because the clip was not set"),
        },
        "bison-flat": {
            **run_of("Marin experiment code, bison-flat"),
            **COOLDOWN,
            "learning_rate.end": code("Marin experiment code, bison-flat"),
            "stop_step": ours("not recorded; Bison's end"),
            "mixture": code(BISON_FILE),
        },
    },
)
