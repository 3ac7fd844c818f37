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
NOTHING = object()


def put(claims: Any, paths: str, value: Any) -> None:
    """Another value at these paths in the claims, or none."""
    for path in paths.split():
        *outer, last = path.split(":")
        inner: Any = claims
        for part in outer:
            inner = inner[int(part)] if isinstance(inner, list) else inner[part]
        place: Any = int(last) if isinstance(inner, list) else last
        if value is NOTHING:
            del inner[place]
        else:
            inner[place] = value


IN_THE_CARD = (
    ("mixture:at_step:0:flan", 10.0, "mixture.at_step[0].flan: the card says 10.0, the home says 20.0"),
    ("order:seed training:settings:order:seed", 77, "order.seed: the card says 77, the home says 0"),
    ("training:settings:optimizer:beta2", 0.99, "training.settings.optimizer.beta2: the card says"),
    ("training:params_digest evaluation:params_digest", ZEROS, f"training.params_digest: the card says {ZEROS}"),
    ("training:final_loss", 1.5, "training.final_loss: the card says 1.5"),
    ("training:finished", "2031-01-01T00:00:00Z", "training.finished: the card says 2031-01-01T00:00:00Z"),
    ("lineage:0:phase lineage:1:start:parent", "phoenix", "lineage[0].phase: the card says phoenix"),
    ("hand_off:changes:batch:before", "6", "hand_off.changes.batch.before: the card says 6"),
    ("data:flan:manifest:source:exclude", ["*/test/*"], "data.flan.manifest.source.exclude: the card says"),
    ("data:flan:manifest:sources:0:digest", f"sha256:{ZEROS}", "data.flan.manifest.sources[0].digest: the card"),
    ("tokenizer:digest", ZEROS, "tokenizer.digest: the card says 0000"),
    ("gates:data:limits:max_epochs", 2.0, "gates.data.limits.max_epochs: the card says 2.0, the home says 1000.0"),
    ("gates:model:passes", False, "gates.model.passes: the card says false"),
    ("gates:data:checks:0:outcome", "failed", "gates.data.checks[0].outcome: the card says failed"),
    ("evaluation:results:next_word:value", 0.99, "evaluation.results.next_word.value: the card says 0.99"),
    ("evaluation:bits_per_byte:flan", 0.5, "evaluation.bits_per_byte.flan: the card says 0.5"),
    ("evaluation:held_out_tokens", 10**6, "evaluation.held_out.flan: no held-out cache in the home"),
    ("checkpoint:files:commit_success.txt:sha256", ZEROS, "checkpoint.files.commit_success.txt.sha256"),
    (f"digests:{RUN}/metrics.jsonl", ZEROS, f"digests.{RUN}/metrics.jsonl: the card says 0"),
    ("data:flan:where", "../../elsewhere", "data.flan.where: the card says ../../elsewhere"),
)
ALONE = (
    ("lineage:0", NOTHING, "lineage: the card says"),
    ("data:flan", NOTHING, "data.flan: the card says nothing"),
    ("scale", "full", "training"),
    ("phase", "kestrel", "training.settings.phase"),
)
"""These change what the card is about."""


@pytest.mark.parametrize("lies", [IN_THE_CARD, *((lie,) for lie in ALONE)], ids=["many", *(paths for paths, _, _ in ALONE)])
def test_lies_in_the_card_are_named(lies: tuple[tuple[str, Any, str], ...], carded: Carded):
    def edit(claims: Any) -> None:
        for paths, value, _ in lies:
            put(claims, paths, value)

    carded.forge(edit)
    check_named(carded, [expected for *_, expected in lies])


def check_named(carded: Carded, expected: list[str]) -> None:
    found = carded.verify()
    assert not found.passes
    lines = [one.line for one in found.disagreements]
    assert [one for one in expected if not any(line.startswith(one) for line in lines)] == [], "\n".join(lines)


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


BYTES = {
    "data.flan.manifest.shards.shard-00000.digest": flipped("tokens/flan/train-*/shard-00000.bin"),
    "data.flan.manifest.shards.shard-00000.index_digest": flipped("tokens/flan/train-*/shard-00000.parquet"),
    "evaluation.held_out.flan.manifest.shards.shard-00000.digest": flipped("tokens/flan/held_out-*/shard-00000.bin"),
    "data.flan.manifest.sources.text.jsonl": flipped("sources/flan/text.jsonl"),
    "checkpoint.files.state/": flipped(f"{RUN}/checkpoints/52/state/**/*"),
    "tokenizer.digest": flipped("tokenizers/*/tokenizer.json"),
    "evaluation.benchmarks_digest": flipped("benchmarks/*/next_word.jsonl"),
}
RECORDS = {
    f"digests.{VERDICTS}/data/mixture.parquet": evidence,
    "gates.health.judged": metrics,
    "mixture.at_step[0].flan: the card says 20.0, the home says 10.0": in_json(
        f"{RUN}/run.json", lambda run: run["mixture"][0][1].update({"flan": 10.0, "medu_science_qa": 60.0})
    ),
    "evaluation.results.next_word.value": in_json(f"{RUN}/evaluation.json", lambda found: found["results"][0].update(value=0.99)),
    "gates.model.passes": in_json(f"{VERDICTS}/model.json", lambda verdict: verdict.update(passes=False)),
    "data.flan.manifest_digest": in_json(f"{VERDICTS}/data.json", lambda verdict: verdict["judged"].update(flan=ZEROS)),
    "lineage.kestrel.params_digest": in_json("runs/tiny-proxy/kestrel/result.json", lambda result: result.update(params_digest=ZEROS)),
    "order.seed": in_json(f"{RUN}/checkpoints/52/about/metadata", lambda about: about["contract"].update(seed=77)),
}
OTHERS = {
    "data.flan.manifest_digest": whole_manifest,
    f"digests.{RUN}/evaluation.json": in_json(
        f"{RUN}/evaluation.json", lambda found: found["results"][0]["answers"][0].update(right=True, id="x")
    ),
    "gates.model.judged.parent's evaluation": in_json(
        "runs/tiny-proxy/kestrel/evaluation.json", lambda found: found.update(macro_bits_per_byte=0.5)
    ),
    "gates.health: the home has no": lambda carded: (carded.home / VERDICTS / "health.json").unlink(),
}


@pytest.mark.parametrize("lies", [BYTES, RECORDS, OTHERS], ids=["bytes", "records", "others"])
def test_lies_in_the_home_are_named(lies: dict[str, Callable[[Carded], None]], carded: Carded):
    for edit in lies.values():
        edit(carded)
    check_named(carded, list(lies))
