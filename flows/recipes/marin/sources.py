"""Where the values come from that both runs of Marin have alike."""

from phasewise.flows.recipes.provenance import Provenance, Sources


def code(place: str) -> Provenance:
    """The record's experiment code."""
    return Provenance(kind="code", place=place)


def prose(place: str) -> Provenance:
    """A report; no stored code has the value."""
    return Provenance(kind="prose", place=place)


def ours(place: str) -> Provenance:
    """This project."""
    return Provenance(kind="ours", place=place)


def common(experiment: str, retrospective: str) -> Sources:
    """Of every phase, unless a recipe or a phase says otherwise. `experiment` is where the code is. `library_values.yaml` has the rest."""
    return {
        "name": prose(f"{retrospective}, the phases' names"),
        "branch": ours("which phases are the main line"),
        "abandoned": ours("which runs were stopped before their schedule's end"),
        "schedule_goes_on": ours("whether the phase that follows goes on with the last segment"),
        "recovery": ours("the code has no rule for it: what diverges stops"),
        "start": code(experiment),
        "start.declares": ours("what a hand-off changes must be declared"),
        "stop_step": code(experiment),
        "model": code(f"{experiment}; {retrospective}, Architecture"),
        "model.vocab_size": code("tokenizer meta-llama/Meta-Llama-3.1-8B"),
        "model.initializer_std": ours("0.02 is in Levanter's LlamaConfig, and no weight is drawn by it: see the discrepancies"),
        "model.compute_dtype": code("mixed precision p=f32,c=bf16"),
        "optimizer": code(experiment),
        "learning_rate": code(experiment),
        "batch": code(experiment),
        "mixture": code(experiment),
        "order": code(experiment),
        "order.rounding": ours("largest remainder, so that no share is halved; the record's library rounds down"),
        "order.cut_blocks": ours("a block that a change of batch cuts is carried"),
        "stability": code(experiment),
        "stability.z_loss": code(experiment),
        "stability.ema_decay": code(experiment),
        "slice": code(f"{experiment}; {retrospective}, Hardware"),
        "checkpoints": code(experiment),
        "checkpoints.at_steps": ours("kept because another phase starts from it"),
        "evaluation": ours("measured at a phase's end, on this project's held-out split"),
        "evaluation.loss_every_steps": code(experiment),
        "gates": ours("limits of this project's judgements; the record had none"),
        "instrumentation": ours("where metrics go beside metrics.jsonl"),
    }
