"""Where the values of Marin 8B come from."""

from phasewise.flows.recipes.marin.annealing import PER_SOURCE
from phasewise.flows.recipes.marin.notes import EXP600, PAPER, R8
from phasewise.flows.recipes.marin.sources import code, common, ours, prose
from phasewise.flows.recipes.provenance import RecordSources, Sources

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


NOT_MEASURED = ours("nothing was measured while it trained (eval_harness_tasks=[]): the ones of the phase that it starts from")
SEEN = {"evaluation.benchmarks": NOT_MEASURED}
MICROANNEALING: Sources = run_of(
    ANNEAL,
    own={
        "batch": code(ANNEAL),
        "stop_step": code(f"{ANNEAL}; rounded to a whole step"),
        "order.first_step": code(f"{ANNEAL}: the data loader is reset"),
        "order.cut_blocks": ours("a block that the end of a stage cuts is carried"),
        "evaluation.loss_every_steps": code("experiments/defaults.py, default_train: 1,000 where nothing is set"),
        "evaluation.benchmarks": code("experiments/defaults.py, default_anneal in early 2025; later versions ask MMLU alone"),
    },
)
NAMED = ("control", "70-30", "flan", "all-hq", "all-hq-flan-5", "small", "flan-70-30")
PER_SOURCE_ARMS = tuple(f"flan-{source.replace('_', '-')}" for source in PER_SOURCE if source != "finemath_3_plus")
FOCUSED = SEEN | {"model.float32_attention": code(SPOONBILL), "instrumentation.layer_norms_every": code(SPOONBILL)}
EXPORTED = {"checkpoints.every_steps": code(f"{SPOONBILL}: an export every 5,000 steps, which is a checkpoint here")}
DESSERT: Sources = run_of("Marin experiment code, dessert runs", own={"checkpoints": code(f"{EXP600}: steps_per_export 2,000,000")})
SFT: Sources = run_of(
    SFT_PLACE,
    own={
        "batch": code(SFT_PLACE),
        "order.first_step": code(f"{SFT_PLACE}: the data begin again"),
        "order.seed": code("experiments/exp606_sft.py, tulu_sft_config: seed 1, which exp916 and exp1237 keep"),
        "evaluation": ours("measured at a phase's end"),
        **SEEN,
        "stop_step": code(f"{SFT_PLACE}; counted on from the parent, where the record counts from 0"),
    },
)

EXTENSION: Sources = {
    field: ours("no phase of the record: rows of 32,768 tokens after Deeper Starling")
    for field in (
        *("name", "start", "stop_step", "model.seq_len", "model.rope", "learning_rate", "batch", "mixture", "order", "gates", "evaluation"),
        *("model", "optimizer", "stability", "slice", "checkpoints", "packing", "loss_on"),
    )
}
SOURCES_8B = RecordSources(
    COMMON,
    {
        "kestrel": {
            "stop_step": code(f"{EXP600}, lines 51 to 78"),
            "learning_rate": code(f"{EXP600}, lines 51 to 78; the reports have another cycle from step 200,000 on"),
        },
        "ocelot": {"learning_rate": code(f"{EXP600}, lines 81 to 116"), "batch": code(f"{EXP600}, lines 81 to 116")},
        "phoenix": {"learning_rate": code(f"{EXP600}, lines 465 to 522"), "mixture": code(f"{EXP600}, lines 465 to 522")},
        **{f"microannealing-{name}": MICROANNEALING for name in (*NAMED, *PER_SOURCE_ARMS)},
        "microannealing-flan-70-30": {
            **MICROANNEALING,
            "mixture": prose(f"{R8}, Interlude: Micro-Annealing; {PAPER}, section 4.2.3: 70 % as before, 30 % FLAN"),
        },
        "cooldown-take-2": run_of("Marin experiment code, cooldown-take-2", own=SEEN),
        "dessert-v1": DESSERT,
        "dessert-v3": {**DESSERT, **SEEN},
        "soft-raccoon": run_of(RACCOON, own=SEEN),
        "softer-raccoon": run_of(RACCOON, own=SEEN),
        "softer-raccoon-no-decay": run_of(RACCOON, own=SEEN | {"optimizer.weight_decay": code(RACCOON)}),
        "softer-raccoon-fresh-moments": run_of(RACCOON, own=SEEN),
        "hypnotic-spoonbill": run_of(SPOONBILL, own=SEEN),
        "spoonbill-norms": run_of(SPOONBILL, own=SEEN | {"instrumentation.layer_norms_every": code(SPOONBILL)}),
        **{
            name: run_of(SPOONBILL, own=FOCUSED | kept)
            for name, kept in (("spoonbill-float32", {}), ("spoonbill-z-loss", EXPORTED), ("deeper-spoonbill", EXPORTED))
        },
        "context-extension": EXTENSION,
        "sft": SFT,
        "sft-spoonbill": {
            **SFT,
            **run_of("Marin experiment code, SFT of Spoonbill"),
            "model.float32_attention": code(f"{SPOONBILL}: the model of the runs that it starts from"),
            "order.permutation": code("experiments/exp606_sft.py, tulu3_llama_data_old"),
        },
    },
)
