"""A field that is declared is used: another value of it moves the key of some result, or is refused with a reason."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from phasewise.flows.checks import check_declared, check_slices
from phasewise.flows.plan import build_run, data_plan
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.feasibility import check_mixtures
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.setups import setups_of
from phasewise.flows.status.verdict_inputs import unreadable_key
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.source import Source
from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.tasks.evaluation.made_benchmarks import write_benchmarks
from phasewise.tasks.evaluation.phase_evaluation import evaluation_key
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import without_added
from phasewise.validations.expectations.suites import SUITES, version_of
from phasewise.validations.expectations.waiver_rules import asked_of_suite
from phasewise.validations.verdict import accepted_by
from phasewise.validations.waivers import accepted_in, expected
from tests.flows.recipes.every_field import AT_SCALE, FIELDS, Raw, Row, edited, leaves
from tests.tasks.conftest import write_lines
from tests.tasks.evaluation.conftest import write_prose

Scale = Literal["proxy", "full"]
Keys = dict[str, str]
SCALES: tuple[Scale, ...] = ("proxy", "full")
PATHS = sorted(leaves(Recipe))
COMPONENTS = ("proofpile_2", "starcoderdata")
OPTIMIZERS: dict[str, Raw] = {
    "AdamC": {"kind": "adamc", "peak_learning_rate": 1e-3},
    "NAdamW": {"kind": "nadamw"},
    "Muon": {
        "kind": "muon", "momentum": 0.9, "nesterov": True, "newton_schulz_steps": 5, "epsilon": 1e-8, "weight_decay": 0.05,
        "max_adam_grad_norm": 1.0,
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
    """A home, two small sources, benchmarks, and recipes of the record's first 32B phase on them."""

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
        """The recipe in which this field can be changed: everything that may be absent is there, and all else is the record's."""
        raw = load_record("marin-32b", scale).model_dump(mode="json")
        phase = self._phase(raw["phases"][0], path)
        source: Raw = {
            "url": str(self.root / "starcoderdata"),
            "include": ["*.jsonl"],
            "format": "jsonl",
            "filters": [{"kind": "field", "key": "text", "keep": ["x"]}, {"kind": "text", "measure": "words", "min": 1.0, "max": 9.0}],
        }
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
        """A tree: `first` and two that start from it; `last` goes on from the second and takes its windows from the third."""
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
        """The key of every result of the recipe.

        Raises:
            ConfigError: one of the checks refuses it.
        """
        if recipe.scale == "proxy":
            check_slices(recipe, recipe.phases)
        check_declared(recipe, recipe.phases)
        check_mixtures(recipe, recipe.phases)
        plan = self._plan(recipe)
        keys = {"phases": ", ".join(phase.name for phase in recipe.main_line), "caches": caches_of(plan)}
        for phase in recipe.phases:
            keys |= {f"{what} of {number_of(phase, recipe)}": key for what, key in self._keys_of(recipe, phase, plan).items()}
        return keys

    def _keys_of(self, recipe: Recipe, phase: Phase, plan: DataPlan) -> Keys:
        try:
            run = build_run(recipe, phase, self.home, plan.folders("train"), held_out=plan.folders("held_out"))
        except CheckpointError as missing:  # it asks for a checkpoint of another step, which nobody made here
            return {"run": str(missing)}
        write_json(Path(run.output) / "result.json", {"params_digest": run.digest})
        return {
            "run": run.digest,
            "evaluation": evaluation_key(run, run.digest, plan, phase.evaluation.measured),
            "preflight": digest_of_json(without_added([setup.model_dump(mode="json") for setup in setups_of([phase])])),
            "hand-off": digest_of_json(repr(_hand_off(recipe, phase))),
            **{f"{name} verdict": _verdict_key(recipe, phase, suite, limits) for name, suite, limits in _judgements(phase)},
        } | {"data verdict": digest_of_json([_verdict_key(recipe, phase, "data", phase.gates.data), unreadable_key(phase, plan)])}

    def _plan(self, recipe: Recipe) -> DataPlan:
        """The plan, with benchmarks; worked out once for the same data."""
        data = digest_of_json(
            [recipe.model_dump(mode="json", include={"tokenizer", "sources", "pins", "max_tokens", "length_bias"}), recipe.main_components]
        )
        if data not in self._plans:
            self._plans[data] = data_plan(recipe, self.home)
            if not self._plans[data].benchmarks.exists():
                shutil.copytree(self.root / "benchmarks", self._plans[data].benchmarks)
        return self._plans[data]


def caches_of(plan: DataPlan) -> str:
    """Tokenizer, caches and benchmarks, by what decides them."""
    caches = [[cache.key for cache in (one.documents, one.train, one.held_out)] for one in plan.components.values()]
    return digest_of_json([caches, plan.tokenizer.parent.name, plan.benchmarks.name])


def number_of(phase: Phase, recipe: Recipe) -> int:
    """By its place: a phase that is called otherwise is compared with itself."""
    return recipe.phases.index(phase)


def _hand_off(recipe: Recipe, phase: Phase) -> Any:
    """What the table of hand-offs says: what is declared, and what is changed."""
    if not isinstance(phase.start, HandOff):
        return None
    return phase.start.declares, recipe.changes_of(phase)


def _judgements(phase: Phase) -> Iterable[tuple[str, str, Any]]:
    return (("data", "data", phase.gates.data), ("training", "health", phase.gates.health), ("gate", "gate", phase.gates.model))


def _verdict_key(recipe: Recipe, phase: Phase, suite: str, limits: Any) -> str:
    """What `flows.record` compares of a verdict, beside what was judged."""
    accepts = accepted_by(suite, accepted_in(phase.name, recipe.accepts))
    asks = asked_of_suite(recipe.asks_people_in(phase), suite).model_dump(mode="json")
    return digest_of_json([limits.model_dump(mode="json"), version_of(SUITES[suite]), expected(accepts), asks])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("fields"))


def ordered(raw: Raw) -> Recipe:
    """Parents first; the phase whose field is changed came first."""
    return Recipe.model_validate(raw | {"phases": [*raw["phases"][1:], raw["phases"][0]]})


def test_every_field_has_a_row_and_no_row_is_of_no_field():
    """A new field needs another value of it, and what must move then."""
    assert sorted(FIELDS) == PATHS
    assert {path for _, path in AT_SCALE} <= FIELDS.keys()
    assert all(row.why for row in (*FIELDS.values(), *AT_SCALE.values()) if row.moves in ("nothing", "refused"))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", PATHS)
def test_a_field_counts(world: World, path: str, scale: Scale):
    row = AT_SCALE.get((scale, path), FIELDS[path])
    before = world.keys(ordered(world.recipe(path, scale)))
    raw = edited(world.recipe(path, scale), path, row)
    raw = json.loads(json.dumps(raw).replace('"LISTING"', json.dumps(str(world.root / "listing"))))
    if row.moves == "refused":
        assert row.why in refusal(world, raw)
        return
    after = world.keys(ordered(raw))
    moved = {name.partition(" of ")[0] for name in before if before[name] != after.get(name)}
    assert (row.moves in moved) if row.moves != "nothing" else not moved, moved


def refusal(world: World, raw: Raw) -> str:
    """The reason that is given."""
    with pytest.raises((ValidationError, ConfigError)) as refused:
        world.keys(ordered(raw))
    return str(refused.value)


def test_the_rows_are_of_fields_that_change(world: World):
    """An edit that leaves the value as it was would prove nothing."""
    for path, row in FIELDS.items():
        raw = world.recipe(path, "proxy")
        assert edited(world.recipe(path, "proxy"), path, row) != raw, path


def test_a_field_without_a_row_is_reported(monkeypatch: pytest.MonkeyPatch):
    row: Row = FIELDS["phases.model.qk_norm"]
    assert row.moves == "run"
    monkeypatch.delitem(FIELDS, "phases.model.qk_norm")
    with pytest.raises(AssertionError):
        test_every_field_has_a_row_and_no_row_is_of_no_field()
