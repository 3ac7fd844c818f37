"""A field that is declared is used: another value of it moves the key of some result, or is refused with a reason."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel, RootModel, ValidationError

from phasewise.flows.checks import check_declared, check_slices
from phasewise.flows.plan import build_run, data_plan, setups_of
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.feasibility import check_mixtures
from phasewise.flows.recipes.phase import HandOff, Phase, Pretrained
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.status.verdict_inputs import unreadable_key
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.source import Source
from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.tasks.evaluation.made_benchmarks import write_benchmarks
from phasewise.tasks.evaluation.phase_evaluation import evaluation_key
from phasewise.tasks.home import Home
from phasewise.tasks.training.pretrained import SOURCE_NAME, check_model, folder_of
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.identity import content_digest, digest_of_json, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import ModelConfig, without_added
from phasewise.trainer.model.hugging_face_config import to_hugging_face
from phasewise.validations.expectations.suites import SUITES, version_of
from phasewise.validations.expectations.waiver_rules import asked_of_suite
from phasewise.validations.limits import accepted_in, expected
from phasewise.validations.verdict import accepted_by
from tests.tasks.conftest import write_lines
from tests.tasks.evaluation.conftest import write_prose

Raw = dict[str, Any]
Scale = Literal["proxy", "full"]
Keys = dict[str, str]
RUN, EVALUATION, DATA, TRAINING, GATE, CACHES, NOTHING = (
    "run", "evaluation", "data verdict", "training verdict", "gate verdict", "caches", "nothing",
)  # fmt: skip
MOVES = {
    "": RUN, "tokenizer": CACHES, "sources": CACHES, "sources.max_": DATA, "length_bias": CACHES, "max_tokens": CACHES,
    "accepts": DATA, "approvable": DATA, "warnings_ask_people": GATE, "pins.split": EVALUATION,
    "phases.slice": "preflight", "phases.branch": "phases", "phases.gates.data": DATA, "phases.gates.health": TRAINING,
    "phases.gates.model": GATE, "phases.evaluation": EVALUATION,
    # a place, whose content the digest names; how training is watched and done; what explains the recipe; what allows a schedule to go on
    "pins.url": NOTHING, "phases.evaluation.loss": NOTHING, "phases.instrumentation": NOTHING, "phases.execution": NOTHING,
    "phases.discrepancies": NOTHING, "phases.forecast": NOTHING,
    "phases.notes": NOTHING, "phases.abandoned": NOTHING,
}  # fmt: skip
"""The beginning of a field → the key that another value moves; the longest decides."""
REFUSED = {
    ">.kind": "expected tags", "adam.kind": "Input should be 'adamw'", "order.first_step": "expected order.first_step 0",
    "schedule_goes_on": "expected a last segment from before step", "renderings.answer": "must have the field other with text",
    "<HandOff>.declares": "declares z_loss, and changes no such thing",
    "sources.revision": "a revision belongs to a Hugging Face data set", "accepts.table": "expect_order_to_mix",
    "accepts.check": "expect_bananas", "approvable.table": "expect_epochs_within_limit", "full scale": "only this machine can train",
    "proxy phases.slice": "only this machine can train", "full tokenizer.components": "only a tokenizer with name null is trained",
    "full tokenizer.special_tokens": "only a trained tokenizer takes special tokens",
    "proxy tokenizer.begin": "a trained tokenizer has", "proxy tokenizer.end": "a trained tokenizer has",
    "<Pretrained>.revision": "only a model of the Hub has revisions", "<Pretrained>.new_rows": "new_rows is 1",
    "<Pretrained>.declares": "declares rope, and has the RoPE of",
}  # fmt: skip
"""The end of a field, behind a scale where only that one refuses → a part of the reason."""


def end_first_segment_later(raw: Raw) -> None:
    first, second = raw["phases"][0]["learning_rate"][:2]
    first["end_step"] += 1
    second["start_step"] += 1


def stop_earlier(raw: Raw) -> None:
    phase = raw["phases"][0]
    phase["stop_step"] -= 1
    phase["learning_rate"][-1]["end_step"] -= 1


def average_afresh(raw: Raw) -> None:
    raw["phases"][0]["start"] |= {"fresh": ["ema"], "declares": ["optimizer_state", "ema"]}


def average_grafted(raw: Raw) -> None:
    start = raw["phases"][0]["start"]
    start["graft"][0]["part"] = "ema"
    start["declares"] = ["ema"]


def mixed_buffer(raw: Raw) -> None:
    raw["phases"][0]["order"] |= {"buffer_documents": 8, "buffer_over": "mixture"}


WHOLE: dict[str, Callable[[Raw], None]] = {
    "phases.stop_step": stop_earlier, "phases.learning_rate.start_step": end_first_segment_later,
    "phases.learning_rate.end_step": end_first_segment_later, "phases.start<HandOff>.fresh": average_afresh,
    "phases.start<HandOff>.graft.part": average_grafted, "phases.order.buffer_over": mixed_buffer,
}  # fmt: skip
"""Fields that change together with another one."""
EDITS: dict[str, Any] = {
    "name": "other", ">.kind": "other", "adam.kind": "other", "scale": lambda before: "full" if before == "proxy" else "proxy",
    **dict.fromkeys(
        ("seq_len", "d_model", "num_query_heads", "head_dim", "block_sequences", "peak_learning_rate"), lambda before: 2 * before
    ),
    **dict.fromkeys(("model.vocab_size", "d_ff", "d_expert"), lambda before: before + 8),
    "tokenizer.vocab_size": lambda before: before - 8, "num_experts": lambda before: before + 4,
    "global_attention_every": 2, "num_dense_layers": 0, "num_kv_heads": lambda before: 2 if before == 1 else 1,
    "compute_dtype": lambda before: "float32" if before == "bfloat16" else "bfloat16",
    "stability.max_grad_norm": [[0, 3.0]], "stability.max_update_rms": [[0, 3.0]], "stability.z_loss": [[0, 0.5]],
    "stability.ema_decay": [[0, 0.5]], "initializer_cutoff": 2.5, "action": "ask", "permutation": "feistel",
    "rounding": "floor", "skip_on": "update_norm", "newton_schulz_coefficients": "dion", "learning_rate.kind": "cosine",
    "batch": [[0, 8]], "phases.mixture": [[0, {"proofpile_2": 50.0, "starcoderdata": 50.0}]], "phases.slice": [[0, "v5p-512"]],
    "at_steps": [5], "evaluation.benchmarks": ["next_word"],
    **dict.fromkeys(("renderings.items", "renderings.reference"), lambda before: before.replace("items", "others")),
    "execution.attention": "splash", "expert_kernel": "ragged", "mesh.context": 2,
    "renderings.prompt": "Q: {text}", "renderings.answer": "other", "renderings.left_out": "<<.*>>", "wandb": "offline",
    "severity": "low", "packing": "greedy", "loss_on": "answers", "<HandOff>.parent": "third", "graft.phase": "second",
    **dict.fromkeys(("<HandOff>.step", "graft.step"), 50), "<HandOff>.declares": lambda before: [*before, "z_loss"],
    "<Pretrained>.declares": ["rope"], "first_step": 3,
    "revision": "main", "listing": "LISTING", "sources.include": ["a.jsonl"], "exclude": ["b.jsonl"], "format": "markdown",
    "measure": "characters", "roles": {"human": "user", "gpt": "assistant"}, "prompt": "other", "context": "other",
    **dict.fromkeys(("best_by", "conversation.system", "unicode"), lambda before: None),
    "template": "trinity", "line_ends": "keep", "trailing_spaces": "strip", "pins.component": "starcoderdata", "split": "held_out",
    "deduplicate": "near", "digest": "1" * 64, "accepts.table": "leakage", "approvable.table": "leakage", "accepts.check": "expect_bananas",
    "approvable.check": "expect_share_error_within_limit", "where": {"permutation": "feistel"}, "accepts.phases": ["first"],
    "approvable.phases": ["first"], "tokenizer.name": "somebody/something", "tokenizer.components": ["starcoderdata"],
}  # fmt: skip
"""The end of a field → another valid value, or how it is made of the present one; the longest decides, else the value's kind."""


def another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 or 0.5
        case str():
            return f"{value}-2"
        case list():
            return ["<|other|>"]
        case _:
            return 1


def longest(table: dict[str, Any], fits: Callable[[str], bool]) -> Any:
    return table.get(max(filter(fits, table), key=len, default=" "))


def ends_with(path: str) -> Callable[[str], bool]:
    return lambda end: path == end or path.endswith(end if end[0] in "<>" else f".{end}")


def models_of(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, RootModel):
        yield from models_of(kind.model_fields["root"].annotation)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    else:
        for part in get_args(kind):
            yield from models_of(part)


def leaves(kind: Any, path: str = "") -> Iterator[str]:
    models = list(dict.fromkeys(models_of(kind)))
    if not models:
        yield path
    for model in models:
        here = f"{path}<{model.__name__}>" if len(models) > 1 else path
        for name, field in model.model_fields.items():
            yield from leaves(field.annotation, f"{here}.{name}" if here else name)


def edited(raw: Raw, path: str) -> Raw:
    if path in WHOLE:
        WHOLE[path](raw)
        return raw
    holder: Any = raw
    *before, last = path.replace("<", ".<").split(".")
    for part in before:
        if part.startswith("<"):
            kinds = {"<FieldFilter>": "field", "<TextFilter>": "text"}
            holder = next(one for one in holder if one["kind"] == kinds[part]) if isinstance(holder, list) else holder
        else:
            holder = first_with(holder, part)[part]
    holder = first_with(holder, last)
    edit = longest(EDITS, ends_with(path))
    holder[last] = another(holder[last]) if edit is None else edit(holder[last]) if callable(edit) else edit
    return raw


def first_with(holder: Any, name: str) -> Any:
    while not (isinstance(holder, dict) and name in holder):
        values = list(holder.values()) if isinstance(holder, dict) else holder
        holder = next(value for value in values if isinstance(value, dict | list))
    return holder


SCALES: tuple[Scale, ...] = ("proxy", "full")
PATHS = sorted(leaves(Recipe))
COMPONENTS = ("proofpile_2", "starcoderdata")
OPTIMIZERS: dict[str, Raw] = {
    "AdamC": {"kind": "adamc", "peak_learning_rate": 1e-3},
    "NAdamW": {"kind": "nadamw"},
    "Muon": {
        "kind": "muon", "momentum": 0.9, "nesterov": True, "newton_schulz_steps": 5, "epsilon": 1e-8, "weight_decay": 0.05,
        "max_adam_grad_norm": 1.0, "newton_schulz_coefficients": "jordan",
    },
}  # fmt: skip
EXPERTS: Raw = {
    "num_experts": 8, "num_active": 2, "num_shared": 1, "d_expert": 32, "route_scale": 1.0, "num_dense_layers": 1, "sequence_loss": 0.1,
}  # fmt: skip
BALANCING: dict[str, Raw] = {
    "SignBalancing": {"kind": "sign", "rate": 0.001},
    "Smebu": {"kind": "smebu", "rate": 0.001, "sharpness": 2.0, "momentum": 0.5},
}


class World:
    def __init__(self, root: Path) -> None:
        self.home = Home.open(str(root / "home"))
        self.root = root
        for name in COMPONENTS:
            for folder in (name, f"{name}-2"):
                for file in ("a", "b"):
                    write_lines(root / folder / f"{file}.jsonl", [f"{folder} {file}"])
        (root / "listing").write_text("a.jsonl\n")
        for name in ("items", "others", "reference-items", "reference-others"):
            write_lines(root / f"{name}.jsonl", [f"<<{name}>> {number} <<a>>" for number in range(8)])
        texts = [HeldOutDocument(str(number), write_prose(number, 200)) for number in range(6)]
        write_benchmarks(root / "benchmarks", {"law": texts})
        self._plans: dict[str, DataPlan] = {}

    def recipe(self, path: str, scale: Scale) -> Raw:
        raw = load_record("marin-32b", scale).model_dump(mode="json")
        phase = self._phase(raw["phases"][0], path)
        source: Raw = {
            "url": str(self.root / "starcoderdata"), "include": ["*.jsonl"], "format": "jsonl",
            "filters": [{"kind": "field", "key": "text", "keep": ["x"]}, {"kind": "text", "measure": "words", "min": 1.0, "max": 9.0}],
        }  # fmt: skip
        if ".conversation" in path:
            asks = {"prompt": "asked"} if path.endswith((".prompt", ".context")) else {"messages": "messages"}
            answer = {"key": "answers", "content": "text", "best_by": "rating"}
            source["conversation"] = {**asks, "answer": answer, "system": "system", "template": "marin"}
        source = Source.model_validate(source).model_dump(mode="json")
        accepted = raw["accepts"][0] | {"phases": None}
        approvable = {"table": "mixture", "check": "expect_epochs_within_limit", "phases": None}
        sources = {"starcoderdata": source, "proofpile_2": source | {"url": str(self.root / "proofpile_2")}}
        pins = [{"component": "proofpile_2", "split": "train", "url": "/pinned/cache", "digest": "0" * 64}]
        raw["length_bias"] = {"starcoderdata": {"floor": 0.1, "ceiling": 0.8, "full_tokens": 100, "seed": 0}}
        raw["tokenizer"]["components"] = None
        raw |= {"phases": [phase], "sources": sources, "pins": pins, "accepts": [accepted], "approvable": [approvable]}
        if "<Pretrained>" in path:
            for name in ("source", "source-2"):
                config = to_hugging_face(ModelConfig.model_validate(phase["model"]), "float32")
                write_json(self.root / name / "config.json", {**config, "name": name})
                (self.root / name / "model.safetensors").touch()
            phase["start"] = {"pretrained": str(self.root / "source"), "revision": None, "new_rows": 0, "declares": []}
        return self._with_hand_offs(raw) if "<HandOff>" in path else raw

    def _phase(self, phase: Raw, path: str) -> Raw:
        stretch = {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_max_positions": 256}
        phase["model"]["rope"]["scaling"] = stretch
        phase["mixture"] = [[0, {"proofpile_2": 40.0, "starcoderdata": 60.0}]]
        phase["order"]["block_sequences"] = 160
        phase["batch"] = [[0, 16]]
        phase["checkpoints"]["at_steps"] = []
        phase["evaluation"]["benchmarks"] = ["word_order", "next_word"]
        said = {"field": "x", "source": "x", "place": "x"}
        phase["discrepancies"] = [said | {"severity": "high", "code": "x", "retrospective": "x"}]
        phase["notes"] = [said | {"text": "x"}]
        for name in ("max_update_norm", "skip_step"):
            phase["stability"][name] = [[0, {"window": 16, "min_samples": 8, "sigmas": 6.0}]]
        phase["stability"]["skip_step"][0][1]["skip_on"] = "loss_and_grad_norm"
        if ".execution" in path:
            mesh, kept = {"replica": 1, "fsdp": 1, "tensor": 1, "expert": 1, "context": 1}, {"on_device": ["query"], "on_host": []}
            kernels = {"attention": "xla", "expert_kernel": "padded"}
            phase["execution"] = {"mesh": mesh, "remat": kept, **kernels, "microbatch_sequences": 8, "loss_chunk_tokens": 64}
        if path.endswith(".forecast"):
            phase["forecast"] = True
        if path.endswith("mlflow"):
            phase["instrumentation"]["mlflow"] = "sqlite:///first.db"
        if ".recovery" in path:
            limit = {"window": 16, "min_samples": 8, "sigmas": 6.0}
            phase["recovery"] = {"action": "roll_back", "max_loss": limit, "checkpoints_back": 1, "steps_more": 0, "max_times": 2}
        if ".experts" in path:
            phase["model"]["experts"] = EXPERTS | {"balancing": dict(BALANCING["Smebu" if "<Smebu>" in path else "SignBalancing"])}
        if path.endswith("health.max_violation"):
            phase["model"]["experts"] = EXPERTS | {"balancing": dict(BALANCING["SignBalancing"])}
            phase["gates"]["health"]["max_violation"] = 1.0
        if ".renderings" in path or path.endswith("exposure_error_rate"):
            phase["evaluation"]["renderings"] = {
                "items": str(self.root / "items.jsonl"), "reference": str(self.root / "reference-items.jsonl"), "prompt": "{text}",
                "answer": "text", "left_out": "<<.*?>>",
            }  # fmt: skip
            phase["gates"]["model"]["exposure_error_rate"] = 0.01
        if path.endswith("evaluation.every_steps"):
            phase["checkpoints"] |= {"every_steps": 1, "keep_all": True}
            phase["evaluation"]["every_steps"] = 10
        if path.endswith("evaluation.held_out"):
            for name in ("text", "text-2"):
                (self.root / name).write_text(name)
            phase["evaluation"]["held_out"] = str(self.root / "text")
        if path.endswith("evaluation.include"):
            for name in ("own", "own-2"):
                (self.root / name).mkdir(exist_ok=True)
                (self.root / name / "quiz.jsonl").write_text(json.dumps({"question": f"Where is {name}?", "answer": "Here"}))
            phase["evaluation"] |= {"benchmarks": ["quiz:0", "next_word"], "include": str(self.root / "own")}
        if path.endswith("needle_error_rate"):
            phase["evaluation"]["benchmarks"] += [f"niah:{phase['model']['seq_len']}"]
            phase["gates"]["model"]["needle_error_rate"] = 0.01
        if path.endswith(("answer_gain_nats", "answer_error_rate")):
            phase["loss_on"] = "answers"
            phase["gates"]["model"] |= {"min_answer_gain_nats": 0.0, "answer_error_rate": 0.01}
        if path.endswith("global_attention_every"):
            phase["model"]["sliding_window"] = 16
        adam = phase["optimizer"]
        for kind, fields in OPTIMIZERS.items():
            if f"<{kind}>" in path:
                phase["optimizer"] = fields | ({"adam": adam, "adam_learning_rate_scale": 0.5} if kind == "Muon" else adam | fields)
        return phase

    def _with_hand_offs(self, raw: Raw) -> Raw:
        rate = {"kind": "constant", "start_step": 0, "end_step": 80, "start": 1e-3, "end": 1e-3}
        first: Raw = raw["phases"][0] | {"abandoned": True, "learning_rate": [rate]}
        kept = first["checkpoints"] | {"at_steps": [20, 40]}
        first |= {"name": "first", "stop_step": 40, "checkpoints": kept}
        start = {"parent": "first", "step": 40, "fresh": [], "graft": [], "declares": []}
        second = first | {"name": "second", "start": start, "stop_step": 60, "checkpoints": kept | {"at_steps": [50]}}
        third = second | {"name": "third"}
        graft = {"part": "rolling", "phase": "third", "step": 60}
        last = start | {"parent": "second", "step": 60, "graft": [graft], "declares": ["optimizer_state"]}
        fourth = second | {"name": "last", "start": last, "stop_step": 80, "checkpoints": kept | {"at_steps": []}}
        return raw | {"phases": [fourth, first, second, third]}

    def keys(self, recipe: Recipe) -> Keys:
        if recipe.scale == "proxy":
            check_slices(recipe, recipe.phases)
        check_declared(recipe, recipe.phases)
        check_mixtures(recipe, recipe.phases)
        plan = self._plan(recipe)
        caches = [[cache.key for cache in (one.documents, one.train, one.held_out)] for one in plan.components.values()]
        keys = {
            "phases": ", ".join(phase.name for phase in recipe.main_line),
            "caches": digest_of_json([caches, plan.tokenizer.parent.name, plan.benchmarks.name]),
        }
        for number, phase in enumerate(recipe.phases):  # a phase that is called otherwise is compared with itself
            keys |= {f"{what} of {number}": key for what, key in self._keys_of(recipe, phase, plan).items()}
        return keys

    def _keys_of(self, recipe: Recipe, phase: Phase, plan: DataPlan) -> Keys:
        if isinstance(phase.start, Pretrained):  # as if its weights were imported
            check_model(phase.start, phase.model, phase.name)
            imported = RunFolder(folder_of(phase.start, phase.model, self.home, recipe.run_name))
            files = {name: content_digest(Path(phase.start.pretrained) / name)[1] for name in ("config.json", "model.safetensors")}
            write_sealed(imported.path / SOURCE_NAME, {"files": files, "params_digest": digest_of_json(files)})
            write_sealed(imported.checkpoint(0) / "digests.json", {})
        try:
            run = build_run(recipe, phase, self.home, plan.folders("train"), held_out=plan.folders("held_out"))
        except CheckpointError as missing:  # it asks for a checkpoint of another step, which nobody made here
            return {"run": str(missing)}
        write_sealed(Path(run.output) / "result.json", {"params_digest": run.digest})

        def verdict_key(suite: str, limits: Any) -> str:
            accepts = accepted_by(suite, accepted_in(phase.name, recipe.accepts))
            asks = asked_of_suite(recipe.asks_people_in(phase), suite).model_dump(mode="json")
            return digest_of_json([limits.model_dump(mode="json"), version_of(SUITES[suite]), expected(accepts), asks])

        hand_off = (phase.start.declares, recipe.changes_of(phase)) if isinstance(phase.start, HandOff) else None
        return {
            "run": run.digest,
            "evaluation": evaluation_key(run, run.digest, plan, phase.evaluation.measured),
            "preflight": digest_of_json(without_added([setup.model_dump(mode="json") for setup in setups_of([phase])])),
            "hand-off": digest_of_json(repr(hand_off)),
            "data verdict": digest_of_json([verdict_key("data", phase.gates.data), unreadable_key(phase, plan)]),
            "training verdict": verdict_key("health", phase.gates.health),
            "gate verdict": verdict_key("gate", phase.gates.model),
        }

    def _plan(self, recipe: Recipe) -> DataPlan:
        of_data = recipe.model_dump(mode="json", include={"tokenizer", "sources", "pins", "max_tokens", "length_bias"})
        data = digest_of_json([of_data, [phase.components for phase in recipe.main_line or recipe.phases]])
        if data not in self._plans:
            self._plans[data] = data_plan(recipe, self.home)
            if not self._plans[data].benchmarks.exists():
                shutil.copytree(self.root / "benchmarks", self._plans[data].benchmarks)
        return self._plans[data]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("fields"))


def ordered(raw: Raw) -> Recipe:
    return Recipe.model_validate(raw | {"phases": [*raw["phases"][1:], raw["phases"][0]]})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", PATHS)
def test_a_field_counts(world: World, path: str, scale: Scale):
    before, raw = world.recipe(path, scale), edited(world.recipe(path, scale), path)
    assert raw != before
    raw = json.loads(json.dumps(raw).replace('"LISTING"', json.dumps(str(world.root / "listing"))))
    if reason := longest(REFUSED, ends_with(path)) or REFUSED.get(f"{scale} {path}"):
        with pytest.raises((ValidationError, ConfigError)) as refused:
            world.keys(ordered(raw))
        assert reason in str(refused.value)
        return
    was, now = world.keys(ordered(before)), world.keys(ordered(raw))
    moved = {name.partition(" of ")[0] for name in was if was[name] != now.get(name)}
    key = longest(MOVES, path.startswith)
    assert (key in moved) if key != NOTHING else not moved, moved


def test_no_entry_is_of_no_field():
    assert all(any(ends_with(path)(end) for path in PATHS) for end in EDITS)
    assert all(any(path.startswith(start) for path in PATHS) for start in MOVES)
    assert set(WHOLE) <= set(PATHS)
