"""Ways to lie, in the card and in the home. Each is refused, and named by its field.

A card that is tampered with here is written again as a whole, without a signature: all of its documents agree with each other.
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


def at(*places: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Another value at these places in the claims."""

    def edit(claims: Any) -> None:
        for path in places:
            *outer, last = path.split("/")
            inner = claims
            for part in outer:
                inner = inner[int(part)] if isinstance(inner, list) else inner[part]
            inner[last] = value

    return edit


def without(path: str) -> Callable[[dict[str, Any]], None]:
    def edit(claims: Any) -> None:
        *outer, last = path.split("/")
        for part in outer:
            claims = claims[part]
        del claims[int(last) if isinstance(claims, list) else last]

    return edit


IN_THE_CARD = {
    "a share": (at("mixture/at_step/0/flan", value=10.0), "mixture.at_step[0].flan: the card says 10.0, the home says 20.0"),
    "the seed": (at("order/seed", "training/settings/order/seed", value=77), "order.seed: the card says 77, the home says 0"),
    "a setting": (at("training/settings/optimizer/beta2", value=0.99), "training.settings.optimizer.beta2: the card says"),
    "the weights": (
        at("training/params_digest", "evaluation/params_digest", value=ZEROS),
        f"training.params_digest: the card says {ZEROS}",
    ),
    "the loss": (at("training/final_loss", value=1.5), "training.final_loss: the card says 1.5"),
    "the date": (at("training/finished", value="2031-01-01T00:00:00Z"), "training.finished: the card says 2031-01-01T00:00:00Z"),
    "the parent": (at("lineage/0/phase", "lineage/1/start/parent", value="phoenix"), "lineage[0].phase: the card says phoenix"),
    "a parent left out": (without("lineage/0"), "lineage: the card says"),
    "the hand-off": (at("hand_off/changes/batch/before", value="6"), "hand_off.changes.batch.before: the card says 6"),
    "a glob": (at("data/flan/manifest/source/exclude", value=["*/test/*"]), "data.flan.manifest.source.exclude: the card says"),
    "a source file": (at("data/flan/manifest/sources/0/digest", value=f"sha256:{ZEROS}"), "data.flan.manifest.sources[0].digest: the card"),
    "a component left out": (without("data/flan"), "data.flan: the card says nothing"),
    "the tokenizer": (at("tokenizer/digest", value=ZEROS), "tokenizer.digest: the card says 0000"),
    "a limit": (at("gates/data/limits/max_epochs", value=2.0), "gates.data.limits.max_epochs: the card says 2.0, the home says 1000.0"),
    "that a verdict passes": (at("gates/model/passes", value=False), "gates.model.passes: the card says false"),
    "the outcome of a check": (at("gates/data/checks/0/outcome", value="failed"), "gates.data.checks[0].outcome: the card says failed"),
    "a result": (at("evaluation/results/next_word/value", value=0.99), "evaluation.results.next_word.value: the card says 0.99"),
    "bits per byte": (at("evaluation/bits_per_byte/flan", value=0.5), "evaluation.bits_per_byte.flan: the card says 0.5"),
    "the held-out text": (at("evaluation/held_out_tokens", value=10**6), "evaluation.held_out.flan: no held-out cache in the home"),
    "a checkpoint file": (at("checkpoint/files/commit_success.txt/sha256", value=ZEROS), "checkpoint.files.commit_success.txt.sha256"),
    "a digest": (lambda claims: claims["digests"].update({f"{RUN}/metrics.jsonl": ZEROS}), f"digests.{RUN}/metrics.jsonl: the card says 0"),
    "the scale": (at("scale", value="full"), "training"),
    "another phase's name": (at("phase", value="kestrel"), "training.settings.phase"),
    "a path out of the home": (at("data/flan/where", value="../../elsewhere"), "data.flan.where: the card says ../../elsewhere"),
}


@pytest.mark.parametrize("tampering", IN_THE_CARD)
def test_a_lie_in_the_card_is_named(tampering: str, carded: Carded):
    edit, expected = IN_THE_CARD[tampering]
    carded.forge(edit)
    found = carded.verify()
    assert not found.passes
    lines = [one.line for one in found.disagreements]
    assert any(line.startswith(expected) for line in lines), lines


def flipped(pattern: str) -> Callable[[Carded], None]:
    """One bit of the largest file of this pattern."""

    def edit(carded: Carded) -> None:
        path = max((path for path in carded.home.glob(pattern) if path.is_file()), key=lambda path: path.stat().st_size)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return edit


def in_json(path: str, edit: Callable[[Any], None]) -> Callable[[Carded], None]:
    """A change of a JSON file, which is sealed again."""
    return lambda carded: carded.edit(path, edit)


def evidence(carded: Carded) -> None:
    path = carded.home / VERDICTS / "data/mixture.parquet"
    pd.read_parquet(path).assign(realised_percent=1.0).to_parquet(path, index=False)


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


IN_THE_HOME = {
    "a byte of a shard": (flipped("tokens/flan/train-*/shard-00000.bin"), "data.flan.manifest.shards.shard-00000.digest"),
    "a byte of an index": (flipped("tokens/flan/train-*/shard-00000.parquet"), "data.flan.manifest.shards.shard-00000.index_digest"),
    "a byte of held-out text": (
        flipped("tokens/flan/held_out-*/shard-00000.bin"),
        "evaluation.held_out.flan.manifest.shards.shard-00000.digest",
    ),
    "a byte of a source file": (flipped("sources/flan/text.jsonl"), "data.flan.manifest.sources.text.jsonl"),
    "a byte of the weights": (flipped(f"{RUN}/checkpoints/52/state/**/*"), "checkpoint.files.state/"),
    "a byte of the tokenizer": (flipped("tokenizers/*/tokenizer.json"), "tokenizer.digest"),
    "an item of a benchmark": (flipped("benchmarks/*/next_word.jsonl"), "evaluation.benchmarks_digest"),
    "a manifest, with its digest": (whole_manifest, "data.flan.manifest_digest"),
    "the evidence of a verdict": (evidence, f"digests.{VERDICTS}/data/mixture.parquet"),
    "the metrics": (metrics, "gates.health.judged"),
    "the mixture of the run": (
        in_json(f"{RUN}/run.json", lambda run: run["mixture"][0][1].update({"flan": 10.0, "medu_science_qa": 60.0})),
        "mixture.at_step[0].flan: the card says 20.0, the home says 10.0",
    ),
    "the score in the evaluation": (
        in_json(f"{RUN}/evaluation.json", lambda found: found["results"][0].update(value=0.99)),
        "evaluation.results.next_word.value",
    ),
    "the answers to the items": (
        in_json(f"{RUN}/evaluation.json", lambda found: found["results"][0]["answers"][0].update(right=True, id="x")),
        f"digests.{RUN}/evaluation.json",
    ),
    "the verdict's pass": (in_json(f"{VERDICTS}/model.json", lambda verdict: verdict.update(passes=False)), "gates.model.passes"),
    "what the verdict judged": (
        in_json(f"{VERDICTS}/data.json", lambda verdict: verdict["judged"].update(flan=ZEROS)),
        "data.flan.manifest_digest",
    ),
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
    "no verdict": (lambda carded: (carded.home / VERDICTS / "health.json").unlink(), "gates.health: the home has no"),
}


@pytest.mark.parametrize("tampering", IN_THE_HOME)
def test_a_lie_in_the_home_is_named(tampering: str, carded: Carded):
    edit, expected = IN_THE_HOME[tampering]
    edit(carded)
    found = carded.verify()
    assert not found.passes
    lines = [one.line for one in found.disagreements]
    assert any(line.startswith(expected) for line in lines), lines
