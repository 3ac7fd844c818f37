"""Where the values come from that both runs of Marin have alike."""

from flows.recipes.provenance import Provenance, Sources


def code(place: str) -> Provenance:
    """The record's experiment code."""
    return Provenance(kind="code", place=place)


def default(place: str) -> Provenance:
    """A library's default, which the code left as it is."""
    return Provenance(kind="default", place=place)


def prose(place: str) -> Provenance:
    """A report; no stored code has the value."""
    return Provenance(kind="prose", place=place)


def ours(place: str) -> Provenance:
    """This project."""
    return Provenance(kind="ours", place=place)


def common(experiment: str, retrospective: str) -> Sources:
    """Of every phase, unless a recipe or a phase says otherwise. `experiment` is where the code is."""
    return {
        "name": prose(f"{retrospective}, the phases' names"),
        "branch": ours("which phases are the main line"),
        "abandoned": ours("which runs were stopped before their schedule's end"),
        "schedule_goes_on": ours("whether the phase that follows goes on with the last segment"),
        "packing": default("Levanter's text data: documents one after the other, cut into rows"),
        "loss_on": default("Levanter's text data: every token is predicted"),
        "recovery": ours("nobody has written down a rule for it: what diverges stops"),
        "start": code(experiment),
        "start.seed": default("Levanter's trainer: seed 0"),
        "start.declares": ours("what a hand-off changes must be declared"),
        "stop_step": code(experiment),
        "model": code(f"{experiment}; {retrospective}, Architecture"),
        "model.vocab_size": code("tokenizer meta-llama/Meta-Llama-3.1-8B"),
        "model.rope": default("Levanter's rotary settings of Llama 3"),
        "model.rms_norm_epsilon": default("Levanter's Llama: RMS norms of epsilon 1e-5"),
        "model.initializer_std": default("Levanter's Llama: initial standard deviation 0.02"),
        "model.compute_dtype": code("mixed precision p=f32,c=bf16"),
        "model.sliding_window": default("Levanter's Llama: none"),
        "model.float32_attention": default("Levanter's Llama: attention in the compute type"),
        "model.attend_within_documents": ours("neither code nor reports say what a packed row's documents see of each other"),
        "optimizer": default("Levanter's Adam: beta1 0.9, beta2 0.95, epsilon 1e-8"),
        "optimizer.kind": code(experiment),
        "optimizer.weight_decay": code(experiment),
        "learning_rate": code(experiment),
        "batch": code(experiment),
        "mixture": code(experiment),
        "order": code(experiment),
        "order.seed": default("Levanter: no seed of the data is set, so it is the trainer's, 0"),
        "order.permutation": default("Levanter's mixture of language-model data: linear"),
        "order.rounding": ours("largest remainder, so that no share is halved; the record's library rounds down"),
        "order.cut_blocks": ours("a block that a change of batch cuts is carried"),
        "stability": default("Levanter: off, where nothing is set"),
        "stability.max_grad_norm": default("Levanter's Adam: global norm 1.0"),
        "stability.z_loss": code(experiment),
        "stability.ema_decay": code(experiment),
        "slice": code(f"{experiment}; {retrospective}, Hardware"),
        "checkpoints": code(experiment),
        "checkpoints.every_minutes": default("Levanter: a temporary checkpoint every 10 minutes"),
        "checkpoints.at_steps": ours("kept because another phase starts from it"),
        "evaluation": ours("measured at a phase's end, on this project's held-out split"),
        "evaluation.loss_every_steps": code(experiment),
        "gates": ours("limits of this project's judgements; the record had none"),
        "instrumentation": ours("where metrics go beside metrics.jsonl"),
    }
