"""Thirty and more ways to lie, in the card and in the home. Each is refused, and named by its field.

A card that is tampered with here is written again as a whole, without a signature: all of its documents agree with each other. Only what it
says against itself, or against the bytes of the home, gives it away.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import read_json, write_json
from tests.tasks.report.card.conftest import Carded

RUN = "runs/tiny-proxy/ocelot"
VERDICTS = "verdicts/tiny-proxy/ocelot"
ZEROS = "0" * 64


def settled(claims: dict[str, Any]) -> None:
    """As a careful forger does: the digest of the settings is worked out again, wherever it is said."""
    digest = digest_of_json(claims["training"]["settings"])
    claims["training"]["run_digest"] = claims["lineage"][-1]["run_digest"] = digest


def share(claims: dict[str, Any]) -> None:
    for shares in (claims["mixture"]["at_step"]["0"], claims["training"]["settings"]["mixture"][0][1]):
        shares["flan"], shares["medu_science_qa"] = 10.0, 60.0
    settled(claims)


def seed(claims: dict[str, Any]) -> None:
    claims["order"]["seed"] = claims["training"]["settings"]["order"]["seed"] = 77
    settled(claims)


def learning_rate(claims: dict[str, Any]) -> None:
    claims["training"]["settings"]["learning_rate"][0]["start"] = 5e-4
    settled(claims)


def weights(claims: dict[str, Any]) -> None:
    claims["training"]["params_digest"] = claims["evaluation"]["params_digest"] = claims["lineage"][-1]["params_digest"] = ZEROS


def parent(claims: dict[str, Any]) -> None:
    claims["lineage"][0]["phase"] = claims["lineage"][1]["start"]["parent"] = "phoenix"


def no_parent(claims: dict[str, Any]) -> None:
    del claims["lineage"][0]


def step(claims: dict[str, Any]) -> None:
    claims["lineage"][0]["left_at_step"] = claims["lineage"][1]["start"]["step"] = 39


def manifest(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Another value in a manifest; its digest and the verdict are made to fit."""

    def edit(claims: dict[str, Any]) -> None:
        cache = claims["data"]["flan"]
        cache["manifest"][name] = value
        cache["manifest_digest"] = claims["gates"]["data"]["judged"]["flan"] = digest_of_json(cache["manifest"])

    return edit


def glob(claims: dict[str, Any]) -> None:
    cache = claims["data"]["flan"]
    cache["manifest"]["source"]["exclude"] = ["*/test/*"]
    cache["manifest_digest"] = claims["gates"]["data"]["judged"]["flan"] = digest_of_json(cache["manifest"])


def source_digest(claims: dict[str, Any]) -> None:
    cache = claims["data"]["flan"]
    cache["manifest"]["sources"][0]["digest"] = f"sha256:{ZEROS}"
    cache["manifest_digest"] = claims["gates"]["data"]["judged"]["flan"] = digest_of_json(cache["manifest"])


def another_gate(claims: dict[str, Any]) -> None:
    claims["gates"]["safety"] = claims["gates"]["model"]


def no_component(claims: dict[str, Any]) -> None:
    del claims["data"]["flan"]
    del claims["gates"]["data"]["judged"]["flan"]


def at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Another value at a place in the claims."""

    def edit(claims: Any) -> None:
        *outer, last = (int(part) if part.isdecimal() else part for part in path.split("/"))
        for part in outer:
            claims = claims[part]
        claims[last] = value

    return edit


IN_THE_CARD = {
    "a share": (share, "mixture.at_step[0].flan: the card says 10.0, the home says 20.0"),
    "the seed of the order": (seed, "order.seed: the card says 77, the home says 0"),
    "the block of the mixture": (at("order/block_sequences", 2048), "order.block_sequences: the card says 2048"),
    "the permutation": (at("order/permutation/kind", "feistel"), "order.permutation.kind: the card says feistel"),
    "a learning rate": (learning_rate, "training.settings.learning_rate[0].start: the card says 0.0005"),
    "a setting alone": (at("training/settings/optimizer/beta2", 0.99), "training.settings.optimizer.beta2: the card says"),
    "the weights": (weights, f"training.params_digest: the card says {ZEROS}"),
    "the loss": (at("training/final_loss", 1.5), "training.final_loss: the card says 1.5"),
    "the tokens": (at("training/tokens", 10**12), "training.tokens: the card says 1000000000000"),
    "the date": (at("training/finished", "2031-01-01T00:00:00Z"), "training.finished: the card says 2031-01-01T00:00:00Z"),
    "the parent": (parent, "lineage[0].phase: the card says phoenix"),
    "a parent left out": (no_parent, "lineage: the card says"),
    "the step it was left at": (step, "lineage[0].left_at_step: the card says 39"),
    "what was made new": (at("lineage/1/start/fresh", ["optimizer"]), "lineage[1].start.fresh"),
    "what the hand-off changed": (at("hand_off/changes/batch/before", "6"), "hand_off.changes.batch.before: the card says 6"),
    "a glob": (glob, "data.flan.manifest.source.exclude: the card says"),
    "a source file": (source_digest, "data.flan.manifest.sources[0].digest: the card says sha256:0000"),
    "the tokens of a cache": (manifest("tokens", 10**9), "data.flan.manifest.tokens: the card says 1000000000"),
    "a manifest's digest": (at("data/flan/manifest_digest", ZEROS), "data.flan.manifest_digest: the card says 0000"),
    "a component left out": (no_component, "data.flan: the card says nothing"),
    "the tokenizer": (at("tokenizer/digest", ZEROS), "tokenizer.digest: the card says 0000"),
    "a limit": (at("gates/data/limits/max_epochs", 2.0), "gates.data.limits.max_epochs: the card says 2.0, the home says 1000.0"),
    "a limit of the leakage": (at("gates/data/limits/leakage/max_items", 0), "gates.data.limits.leakage.max_items: the card says 0"),
    "that a verdict passes": (at("gates/model/passes", False), "gates.model.passes: the card says false"),
    "the outcome of a check": (at("gates/data/checks/0/outcome", "failed"), "gates.data.checks[0].outcome: the card says failed"),
    "what a verdict judged": (at("gates/model/judged/evaluation", ZEROS), "gates.model.judged.evaluation: the card says 0000"),
    "a result": (at("evaluation/results/next_word/value", 0.99), "evaluation.results.next_word.value: the card says 0.99"),
    "the error of a result": (at("evaluation/results/next_word/stderr", 1e-4), "evaluation.results.next_word.stderr: the card says 0.0001"),
    "bits per byte": (at("evaluation/bits_per_byte/flan", 0.5), "evaluation.bits_per_byte.flan: the card says 0.5"),
    "the bound on held-out text": (at("evaluation/held_out_tokens", 10**6), "evaluation.held_out.flan: no held-out cache in the home"),
    "a file of the checkpoint": (at("checkpoint/files/commit_success.txt/sha256", ZEROS), "checkpoint.files.commit_success.txt.sha256"),
    "the step": (at("checkpoint/step", 10_000), "checkpoint.step: the card says 10000"),
    "the scale": (at("scale", "full"), "training"),
    "another phase's name": (at("phase", "kestrel"), "training.settings.phase"),
    "a path out of the home": (at("data/flan/where", "../../elsewhere"), "data.flan.where: the card says ../../elsewhere"),
    "a gate that nobody has": (another_gate, "gates.safety: the card says"),
}


@pytest.mark.parametrize("tampering", IN_THE_CARD)
def test_a_lie_in_the_card_is_named(tampering: str, carded: Carded):
    edit, expected = IN_THE_CARD[tampering]
    carded.forge(edit)
    found = carded.verify()
    assert not found.passes
    lines = [one.line for one in found.disagreements]
    assert any(line.startswith(expected) for line in lines), lines


def shard_byte(carded: Carded) -> None:
    flip(next((carded.home / "tokens/flan").glob("train-*/shard-00000.bin")))


def index_byte(carded: Carded) -> None:
    flip(next((carded.home / "tokens/flan").glob("train-*/shard-00000.parquet")))


def held_out_byte(carded: Carded) -> None:
    flip(next((carded.home / "tokens/flan").glob("held_out-*/shard-00000.bin")))


def source_byte(carded: Carded) -> None:
    flip(carded.home / "sources/flan/text.jsonl")


def weight_byte(carded: Carded) -> None:
    flip(max((carded.home / RUN / "checkpoints/52/state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0))


def tokenizer_byte(carded: Carded) -> None:
    flip(next((carded.home / "tokenizers").glob("*/tokenizer.json")))


def benchmark_item(carded: Carded) -> None:
    flip(next((carded.home / "benchmarks").glob("*/next_word.jsonl")))


def evidence(carded: Carded) -> None:
    path = carded.home / VERDICTS / "data/mixture.parquet"
    table = pd.read_parquet(path)
    table["realised_percent"] = 1.0
    table.to_parquet(path, index=False)


def flip(path: Any) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def metrics(carded: Carded) -> None:
    path = carded.home / RUN / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step":45,', '"step":45,"extra":1,'))


def whole_manifest(carded: Carded) -> None:
    """With its own digest worked out again."""
    path = next((carded.home / "tokens/flan").glob("train-*/manifest.json"))
    content = read_json(path)
    del content["digest"]
    content["source"]["exclude"] = ["*/test/*"]
    write_json(path, {**content, "digest": digest_of_json(content)})


def mixture_of_run(carded: Carded) -> None:
    carded.edit(f"{RUN}/run.json", lambda run: run["mixture"][0][1].update({"flan": 10.0, "medu_science_qa": 60.0}))


def result_of_evaluation(carded: Carded) -> None:
    carded.edit(f"{RUN}/evaluation.json", lambda evaluation: evaluation["results"][0].update(value=0.99))


def in_json(path: str, edit: Callable[[Any], None]) -> Callable[[Carded], None]:
    return lambda carded: carded.edit(path, edit)


IN_THE_HOME = {
    "a byte of a shard": (shard_byte, "data.flan.manifest.shards.shard-00000.digest"),
    "a byte of an index": (index_byte, "data.flan.manifest.shards.shard-00000.index_digest"),
    "a byte of held-out text": (held_out_byte, "evaluation.held_out.flan.manifest.shards.shard-00000.digest"),
    "a byte of a source file": (source_byte, "data.flan.manifest.sources.text.jsonl"),
    "a byte of the weights": (weight_byte, "checkpoint.files.state/"),
    "a byte of the tokenizer": (tokenizer_byte, "tokenizer.digest"),
    "an item of a benchmark": (benchmark_item, "evaluation.benchmarks_digest"),
    "a manifest, with its digest": (whole_manifest, "data.flan.manifest_digest"),
    "the evidence of a verdict": (evidence, "digests.verdicts/tiny-proxy/ocelot/data/mixture.parquet"),
    "the metrics": (metrics, "gates.health.judged"),
    "the mixture of the run": (mixture_of_run, "mixture.at_step[0].flan: the card says 20.0, the home says 10.0"),
    "the score in the evaluation": (result_of_evaluation, "evaluation.results.next_word.value"),
    "the answers to the items": (
        in_json(f"{RUN}/evaluation.json", lambda found: found["results"][0]["answers"][0].update(right=True, id="x")),
        "digests.runs/tiny-proxy/ocelot/evaluation.json",
    ),
    "the verdict's pass": (in_json(f"{VERDICTS}/model.json", lambda verdict: verdict.update(passes=False)), "gates.model.passes"),
    "the verdict's limits": (
        in_json(f"{VERDICTS}/data.json", lambda verdict: verdict["thresholds"].update(max_epochs=2.0)),
        "gates.data.limits.max_epochs: the card says 1000.0, the home says 2.0",
    ),
    "what the verdict judged": (
        in_json(f"{VERDICTS}/data.json", lambda verdict: verdict["judged"].update(flan=ZEROS)),
        "data.flan.manifest_digest",
    ),
    "the result's weights": (in_json(f"{RUN}/result.json", lambda result: result.update(params_digest=ZEROS)), "training.params_digest"),
    "the parent's weights": (
        in_json("runs/tiny-proxy/kestrel/result.json", lambda result: result.update(params_digest=ZEROS)),
        "lineage.kestrel.params_digest",
    ),
    "the parent's scores": (
        in_json("runs/tiny-proxy/kestrel/evaluation.json", lambda found: found.update(macro_bits_per_byte=0.5)),
        "gates.model.judged.parent's evaluation",
    ),
    "the contract in the checkpoint": (
        in_json(f"{RUN}/checkpoints/52/about/metadata", lambda about: about["contract"].update(seed=77)),
        "order.seed",
    ),
}


@pytest.mark.parametrize("tampering", IN_THE_HOME)
def test_a_lie_in_the_home_is_named(tampering: str, carded: Carded):
    edit, expected = IN_THE_HOME[tampering]
    edit(carded)
    found = carded.verify()
    assert not found.passes
    lines = [one.line for one in found.disagreements]
    assert any(line.startswith(expected) for line in lines), lines


@pytest.mark.parametrize(
    ("name", "path"), [("run", f"{RUN}/run.json"), ("verdict", f"{VERDICTS}/health.json"), ("evaluation", f"{RUN}/evaluation.json")]
)
def test_what_is_missing_in_the_home_is_named(name: str, path: str, carded: Carded):
    (carded.home / path).unlink()
    found = carded.verify()
    assert not found.passes
    assert any(f"the home has no {path}" in one.words for one in found.disagreements), name
