"""Where the values of Marin 8B come from."""

from flows.recipes.marin.annealing import PER_SOURCE
from flows.recipes.marin.notes import EXP600, PAPER, R8
from flows.recipes.marin.sources import code, common, default, ours, prose
from flows.recipes.provenance import RecordSources, Sources

ISSUES = "issues 784, 820 and 845 to 847"
ANNEAL = f"Marin experiment code, AnnealConfig; {ISSUES}"
INLINE = "the code's inline evaluation"
RACCOON, SPOONBILL = "Marin experiment code, issue 898", "Marin experiment code, issue 916"
SFT_PLACE = "Marin experiment code, exp1237"

COMMON: Sources = {**common(EXP600, R8), "evaluation.benchmarks": code(f"{EXP600}, {INLINE}")}


def run_of(place: str, **others: Sources) -> Sources:
    """A branch whose own settings are in another place than exp600."""
    fields = ("stop_step", "learning_rate", "mixture", "slice")
    named: Sources = {"name": ours("a name for the branch"), "start": code(place), **{field: code(place) for field in fields}}
    return {**named, "start.declares": COMMON["start.declares"], **{name: one for part in others.values() for name, one in part.items()}}


MICROANNEALING: Sources = run_of(
    ANNEAL,
    own={
        "batch": code(ANNEAL),
        "stop_step": code(f"{ANNEAL}; rounded to a whole step"),
        "order.first_step": code(f"{ANNEAL}: the data loader is reset"),
        "order.cut_blocks": ours("a block that the end of a stage cuts is carried"),
        "evaluation.loss_every_steps": ours("as often as in the phases after Kestrel"),
    },
)
NAMED = ("control", "70-30", "flan", "all-hq", "all-hq-flan-5", "small", "flan-70-30")
PER_SOURCE_ARMS = tuple(f"flan-{source.replace('_', '-')}" for source in PER_SOURCE if source != "finemath_3_plus")
DESSERT: Sources = run_of("Marin experiment code, dessert runs")
SFT: Sources = run_of(
    SFT_PLACE,
    own={
        "optimizer.weight_decay": code(SFT_PLACE),
        "batch": code(SFT_PLACE),
        "order.first_step": code(f"{SFT_PLACE}: the data begin again"),
        "packing": default("Levanter's chat data: conversations are packed (docs/reference/Data-Formats.md, pack)"),
        "loss_on": default("Levanter's chat data: user turns are masked (docs/reference/Data-Formats.md, mask_user_turns)"),
        "evaluation": ours("measured at a phase's end"),
        "stop_step": code(f"{SFT_PLACE}; counted on from the parent, where the record counts from 0"),
    },
)

EXTENSION: Sources = {
    field: ours("no phase of the record: rows of 32,768 tokens after Deeper Starling")
    for field in (
        *("name", "start", "stop_step", "model.seq_len", "model.rope", "learning_rate", "batch", "mixture", "order", "gates", "evaluation"),
        *("model", "optimizer", "stability", "slice", "checkpoints"),
    )
}
SOURCES_8B = RecordSources(
    COMMON,
    {
        "kestrel": {
            "stop_step": code(f"{EXP600}, lines 51 to 78"),
            "learning_rate": code(f"{EXP600}, lines 51 to 78; the reports have another cycle from step 200,000 on"),
            "learning_rate.end": default("Levanter: min_lr_ratio 0.1 of the peak, where a decay ends"),
            "model.rope": default("Levanter's Llama before its Llama 3 settings: theta 10,000, no scaling"),
        },
        "ocelot": {"learning_rate": code(f"{EXP600}, lines 81 to 116"), "batch": code(f"{EXP600}, lines 81 to 116")},
        "phoenix": {"learning_rate": code(f"{EXP600}, lines 465 to 522"), "mixture": code(f"{EXP600}, lines 465 to 522")},
        **{f"microannealing-{name}": MICROANNEALING for name in (*NAMED, *PER_SOURCE_ARMS)},
        "microannealing-flan-70-30": {
            **MICROANNEALING,
            "mixture": prose(f"{R8}, Interlude: Micro-Annealing; {PAPER}, section 4.2.3: 70 % as before, 30 % FLAN"),
        },
        "cooldown-take-2": run_of("Marin experiment code, cooldown-take-2"),
        "dessert-v1": DESSERT,
        "dessert-v3": DESSERT,
        "soft-raccoon": run_of(RACCOON),
        "softer-raccoon": run_of(RACCOON),
        "softer-raccoon-no-decay": run_of(RACCOON, own={"optimizer.weight_decay": code(RACCOON)}),
        "softer-raccoon-fresh-moments": run_of(RACCOON),
        "hypnotic-spoonbill": run_of(SPOONBILL),
        "spoonbill-norms": run_of(SPOONBILL, own={"instrumentation.layer_norms_every": code(SPOONBILL)}),
        **{
            name: run_of(SPOONBILL, own={"model.float32_attention": code(SPOONBILL), "instrumentation.layer_norms_every": code(SPOONBILL)})
            for name in ("spoonbill-float32", "spoonbill-z-loss", "deeper-spoonbill")
        },
        "context-extension": EXTENSION,
        "sft": SFT,
        "sft-spoonbill": {**SFT, **run_of("Marin experiment code, SFT of Spoonbill")},
    },
)
