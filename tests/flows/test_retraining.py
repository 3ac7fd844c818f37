import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows import train_recipe
from phasewise.flows.plan import build_run
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status import retraining
from phasewise.flows.status.phase_status import raise_unless_let_pass
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, TrainingDiverged, TrainingError, VerdictError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.verdict import Verdict

MARIN = load_recipe("marin-32b", "proxy")
MANTIS = MARIN.phase("mantis")
X = dict.fromkeys(("expectation", "found", "limit", "where", "what_to_do"), "x")
REASON: dict[str, str] = {**X, "severity": "critical", "what": "next_word is at its baseline"}


def judge(home: Home, phase: str, gate: str, *reasons: dict[str, str]) -> None:
    verdict = {"subject": "x", "suite": gate, "suite_version": "1", "passes": not reasons, "judged": {}, "thresholds": {}}
    write_sealed(home.verdict("marin-32b-proxy", phase, gate), {**verdict, "reasons": reasons, "checks": (), "evidence": "x"})


@pytest.fixture
def judged_home(tmp_path: Path) -> Home:
    judged_home = Home.open(str(tmp_path))
    for phase in ("phase-1", "qk-norm"):
        for gate in ("data", "health", "model"):
            judge(judged_home, phase, gate)
    return judged_home


def refusal(judged_home: Home, recipe: Recipe = MARIN) -> str:
    with pytest.raises(VerdictError) as refused:
        retraining.check_ancestors_passed(Resolved("marin-32b", recipe, None, judged_home, KnownDigests()), recipe.phase("mantis"))
    assert sorted(path.name for path in judged_home.root.iterdir()) == ["verdicts"]  # nothing was prepared
    return str(refused.value)


def test_a_phase_rests_on_its_lineage_and_on_what_is_grafted(judged_home: Home):
    assert [phase.name for phase in MARIN.ancestors(MANTIS)] == ["phase-1", "qk-norm"]
    assert MARIN.ancestors(MARIN.phase("phase-1")) == ()
    assert [phase.name for phase in retraining.phases_to_train(MARIN, MANTIS)] == ["phase-1", "qk-norm", "mantis"]
    assert retraining.phases_to_train(MARIN, None) == MARIN.phases
    raw = MARIN.model_dump(mode="json")
    (mantis,) = [phase for phase in raw["phases"] if phase["name"] == "mantis"]
    (bison,) = [phase for phase in raw["phases"] if phase["name"] == "bison"]  # it is not in the lineage of Mantis
    mantis["start"]["graft"] = [{"part": "rolling", "phase": "bison", "step": bison["stop_step"]}]
    mantis["start"]["declares"].append("optimizer_state")
    recipe = Recipe.model_validate(raw)
    assert [phase.name for phase in recipe.ancestors(recipe.phase("mantis"))] == ["phase-1", "qk-norm", "bison"]
    assert refusal(judged_home, recipe).startswith(
        "marin-32b-proxy/mantis needs bison, which is not done: there is no verdict on its data."
    )


@pytest.mark.parametrize(("gate", "what"), [("data", "data"), ("health", "training"), ("model", "model")])
@pytest.mark.parametrize("phase", ["phase-1", "qk-norm"])
def test_every_verdict_of_the_lineage_is_asked(judged_home: Home, phase: str, gate: str, what: str):
    judge(judged_home, phase, gate, REASON)
    found = refusal(judged_home)
    assert found == (
        f"marin-32b-proxy/mantis needs {phase}, which is not done: the verdict on its {what} fails: next_word is at its baseline.\n"
        f"  to do: `phasewise run marin-32b/{phase} --scale proxy --home {judged_home.root}` completes it "
        "and judges it again."
    )
    judged_home.verdict("marin-32b-proxy", phase, gate).unlink()
    assert f"there is no verdict on its {what}." in refusal(judged_home)
    assert (
        retraining.check_ancestors_passed(Resolved("marin-32b", MARIN, None, judged_home, KnownDigests()), MARIN.phase("phase-1")) is None
    )


RECIPE = tiny_recipe()
KESTREL, OCELOT = RECIPE.phases
Edit = Callable[[dict[str, Any]], object]


def resolved_from(recipe: Recipe, home: Home) -> Resolved:
    resolved = Resolved(recipe.name, recipe, None, home, KnownDigests())
    caches = {name: home.tokens(name, "train", "0" * 64) for name in recipe.components}
    object.__setattr__(resolved, "plan", None)  # none of its caches is prepared again
    object.__setattr__(resolved, "run", lambda phase: build_run(recipe, phase, home, caches))
    return resolved


def leave_trained(run: RunConfig, step: int, *, seconds: float = 0.1, ends: bool = True) -> None:
    output = Path(run.output)
    write_sealed(output / "run.json", run.model_dump(mode="json"))
    write_sealed(RunFolder(output).checkpoint(step) / "digests.json", {"files": {}})
    row = f'{{"step": 1, "tokens": 256, "step_seconds": {seconds}}}\n'
    (output / "metrics.jsonl").write_text(row * 3)
    if ends:
        write_sealed(output / "result.json", {"params_digest": f"weights of {run.phase}", "run_digest": run.digest})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Both phases are trained."""
    home = Home.open(str(tmp_path))
    resolved = resolved_from(RECIPE, home)
    leave_trained(resolved.run(KESTREL), 40)
    leave_trained(resolved.run(OCELOT), 52)
    return home


def edited(edit: Edit) -> Recipe:
    raw = RECIPE.model_dump(mode="json")
    edit(raw)
    return Recipe.model_validate(raw)


def clip_kestrel(raw: dict[str, Any]) -> None:
    for phase in raw["phases"]:
        phase["stability"]["max_grad_norm"] = [[0, 0.5], [30, 1.0]]


def save_ocelot_more_often(raw: dict[str, Any]) -> None:
    raw["phases"][1]["checkpoints"]["every_steps"] = 4


def replaced(recipe: Recipe, home: Home) -> tuple[retraining.Replaced, ...]:
    return retraining.find_replaced(resolved_from(recipe, home), recipe.phases)


def test_a_change_names_its_fields_and_its_cost_and_what_starts_from_it(home: Home):
    assert replaced(RECIPE, home) == ()
    (found,) = replaced(edited(save_ocelot_more_often), home)
    tokens = OCELOT.tokens
    assert found == ("ocelot", 52, "checkpoints.every_steps: 5 → 4", tokens, pytest.approx(tokens * 0.1 / 256))
    assert str(found) == f"ocelot, trained to step 52: checkpoints.every_steps: 5 → 4 ({tokens:,} tokens, about {tokens * 0.1 / 256:.0f} s)"
    first, second = replaced(edited(clip_kestrel), home)
    assert first.why == "stability.max_grad_norm[0][1]: 1.0 → 0.5; stability.max_grad_norm[1]: nothing → [30, 1.0]"
    assert second.why == "it starts from kestrel, which is trained again"


def test_a_half_trained_phase_is_work_too_if_it_has_a_whole_checkpoint(home: Home):
    (home.run("tiny-proxy", "ocelot") / "result.json").unlink()
    assert [one.phase for one in replaced(edited(save_ocelot_more_often), home)] == ["ocelot"]
    assert replaced(RECIPE, home) == ()
    (RunFolder(home.run("tiny-proxy", "ocelot")).checkpoint(52) / "digests.json").unlink()
    assert replaced(edited(save_ocelot_more_often), home) == ()


def test_other_weights_of_the_parent_are_named(home: Home):
    write_sealed(home.run("tiny-proxy", "kestrel") / "result.json", {"params_digest": "others"})
    (found,) = replaced(RECIPE, home)
    assert (found.phase, found.why) == ("ocelot", "start.params_digest: weights of kestrel → others")


def test_little_work_at_proxy_scale_is_done_again_unasked(home: Home):
    recipe = edited(clip_kestrel)
    found = replaced(recipe, home)
    retraining.check_replaced(resolved_from(recipe, home), found, ())
    assert [one.phase for one in found] == ["kestrel", "ocelot"]


@pytest.mark.parametrize("seconds", [600.0, None])
def test_more_is_refused_and_so_is_what_nobody_timed_and_anything_at_full_scale(home: Home, seconds: float | None):
    recipe = edited(clip_kestrel)
    found = [one._replace(seconds=seconds) for one in replaced(recipe, home)]
    with pytest.raises(retraining.WouldReplace) as refused:
        retraining.check_replaced(resolved_from(recipe, home), found, ())
    lines = str(refused.value).splitlines()
    assert lines[0] == "tiny-proxy differs from the trained recipe, and training it would replace work:"
    assert lines[1].startswith("  kestrel, trained to step 40: stability.max_grad_norm[0][1]: 1.0 → 0.5; ")
    assert lines[2].startswith("  ocelot, trained to step 52: it starts from kestrel")
    assert f"`phasewise run tiny --scale proxy --home {home.root} --retrain kestrel`" in lines[3]
    assert retraining.WouldReplace.exit_code == 1
    full = RECIPE.model_copy(update={"scale": "full"})
    little = [retraining.Replaced("ocelot", 52, "a reason", 10, 1.0)]
    with pytest.raises(retraining.WouldReplace, match=r"ocelot, trained to step 52: a reason \(10 tokens, about 1 s\)"):
        retraining.check_replaced(resolved_from(full, home), little, ())
    retraining.check_replaced(resolved_from(full, home), little, ["ocelot"])


def test_who_is_named_takes_what_starts_from_it_along(home: Home):
    recipe = edited(clip_kestrel)
    found = [one._replace(seconds=1e6) for one in replaced(recipe, home)]
    retraining.check_replaced(resolved_from(recipe, home), found, ["kestrel"])
    with pytest.raises(retraining.WouldReplace) as refused:
        retraining.check_replaced(resolved_from(recipe, home), found, ["ocelot"])
    assert "ocelot" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"--retrain names kestral: expected phases of this run \(kestrel, ocelot"):
        retraining.check_named(["kestral"], RECIPE.phases, "--retrain")


def longer(stop_step: int, rate: float = 1.7e-3, clip: float = 1.0) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        phase = raw["phases"][1]
        phase["stop_step"] = phase["learning_rate"][0]["end_step"] = stop_step
        phase["learning_rate"][0] |= {"start": rate, "end": rate}
        phase["stability"]["max_grad_norm"] = [[0, 1.0], [45, clip]] if clip < 1 else [[0, 1.0]]

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (longer(50), "stop_step: expected more than the trained 52, found 50"),
        (longer(60, rate=1.6e-3), "learning_rate of update 41: expected 0.0017 as trained, found 0.0016"),
        (longer(60, clip=0.5), "stability.max_grad_norm"),
    ],
)
def test_a_changed_past_is_no_extension(edit: Edit, said: str, home: Home):
    with pytest.raises(ConfigError, match=f"^--extend ocelot: .*{said}.*or train again with --retrain ocelot"):
        retraining.extend_phases(resolved_from(edited(edit), home), ["ocelot"])


def test_more_steps_are_offered_and_then_replace_nothing(home: Home):
    recipe = edited(longer(60))
    resolved, run = resolved_from(recipe, home), RunFolder(home.run("tiny-proxy", "ocelot"))
    (found,) = replaced(recipe, home)
    assert re.search("stop_step: 52 → 60; .*; --extend ocelot continues it$", found.why)
    retraining.extend_phases(resolved, ["ocelot"])
    assert replaced(recipe, home) == ()
    assert not run.result.exists()
    retraining.extend_phases(resolved, ["ocelot"])  # a stopped extension is begun
    leave_trained(resolved.run(recipe.phase("ocelot")), 60)
    with pytest.raises(ConfigError, match=r"expected more than the trained 60, found 52"):
        retraining.extend_phases(resolved_from(RECIPE, home), ["ocelot"])
    run.path.rename(run.path.with_name("away"))
    with pytest.raises(ConfigError, match=r"expected a trained run to continue, found no checkpoint in"):
        retraining.extend_phases(resolved, ["ocelot"])


NOWHERE = Path("nowhere.json")
MARIN_8B = load_recipe("marin-8b", "proxy")
NAMES = [phase.name for phase in MARIN_8B.phases]
Train = Callable[..., list[str]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    def train_all(recipe: Recipe, *refused: str, error: type[Exception] = VerdictError) -> list[str]:
        tried: list[str] = []

        def train_phase(_recipe: str, phase: str, _scale: str, _home: str | None, *, retrain: bool, settings: tuple[str, ...]) -> None:
            assert settings == ()
            assert retrain == (phase == recipe.phases[0].name)
            tried.append(phase)
            if phase in refused:
                raise error(f"{phase} does not pass")

        monkeypatch.setattr(train_recipe, "train_phase", train_phase)
        refusals = train_recipe.train_phases(
            Resolved("marin-8b", recipe, None, Home(tmp_path), KnownDigests()), recipe.phases, None, {recipe.phases[0].name}
        )
        assert {name: str(refusal) for name, refusal in refusals.items()} == {name: f"{name} does not pass" for name in refused}
        return tried

    return train_all


def with_branch() -> Recipe:
    raw = MARIN_8B.model_dump(mode="json")
    return Recipe.model_validate({**raw, "phases": [*raw["phases"], {**raw["phases"][1], "name": "branch"}]})


@pytest.mark.parametrize("refused", NAMES)
def test_a_refusal_stops_what_would_start_from_it(train: Train, refused: str):
    assert train(MARIN_8B) == NAMES
    assert train(MARIN_8B, refused) == NAMES[: NAMES.index(refused) + 1]


@pytest.mark.parametrize("error", [VerdictError, TrainingDiverged])
def test_a_refusal_stops_no_sibling(train: Train, error: type[Exception]):
    assert train(with_branch(), "ocelot", error=error) == ["kestrel", "ocelot", "branch"]
    assert train(with_branch(), "kestrel", error=error) == ["kestrel"]


def test_what_is_no_refusal_stops_everything(train: Train):
    with pytest.raises(TrainingError):
        train(MARIN_8B, "ocelot", error=TrainingError)


def test_a_refusal_gives_the_first_critical_reasons():
    fields: dict[str, Any] = dict.fromkeys(("expectation", "found", "limit", "where"), "x") | {"what_to_do": "Repair it."}
    severities = ("warning", *["critical"] * 5)
    reasons = tuple(
        Reason.model_validate({**fields, "severity": severity, "what": f"reason {number}"}) for number, severity in enumerate(severities)
    )
    blank: dict[str, Any] = {"judged": {}, "thresholds": {}, "checks": (), "evidence": "x"}
    judged = Verdict(subject="tiny data", suite="data", suite_version="1", passes=False, reasons=reasons, **blank)
    assert raise_unless_let_pass(judged.but(passes=True), NOWHERE, "`approve`") is None
    with pytest.raises(VerdictError) as refusal:
        raise_unless_let_pass(judged, NOWHERE, "`approve`")
    assert str(refusal.value) == (
        "tiny data failed: reason 1 (in x)\n  found: x; limit: x\n  to do: Repair it. And 4 more cases. In all, 0 of 0 checks passed. See x"
    )
