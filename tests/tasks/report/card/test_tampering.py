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
    ("lineage:0", NOTHING, "lineage: the card says"), ("data:flan", NOTHING, "data.flan: the card says nothing"),
    ("scale", "full", "training"), ("phase", "kestrel", "training.settings.phase"),
)  # fmt: skip


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


def flip(carded: Carded, pattern: str) -> None:
    path = max((path for path in carded.home.glob(pattern) if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def evidence(carded: Carded) -> None:
    path = carded.home / VERDICTS / "data/mixture.parquet"
    pd.read_parquet(path).assign(realised_percent=1.0).to_parquet(path, index=False)


def metrics(carded: Carded) -> None:
    path = carded.home / RUN / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step":45,', '"step":45,"extra":1,'))


def whole_manifest(carded: Carded) -> None:
    path = next((carded.home / "tokens/flan").glob("train-*/manifest.json"))
    content = read_json(path)
    del content["digest"]
    content["source"]["exclude"] = ["*/test/*"]
    write_json(path, {**content, "digest": digest_of_json(content)})


BYTES = {
    "data.flan.manifest.shards.shard-00000.digest": "tokens/flan/train-*/shard-00000.bin",
    "data.flan.manifest.shards.shard-00000.index_digest": "tokens/flan/train-*/shard-00000.parquet",
    "evaluation.held_out.flan.manifest.shards.shard-00000.digest": "tokens/flan/held_out-*/shard-00000.bin",
    "data.flan.manifest.sources.text.jsonl": "sources/flan/text.jsonl",
    "checkpoint.files.state/": f"{RUN}/checkpoints/52/state/**/*",
    "tokenizer.digest": "tokenizers/*/tokenizer.json",
    "evaluation.benchmarks_digest": "benchmarks/*/next_word.jsonl",
}
SEALED: tuple[dict[str, tuple[str, str, Any]], ...] = (
    {
        "mixture.at_step[0].flan: the card says 20.0, the home says 10.0": (f"{RUN}/run.json", "mixture:0:1:flan", 10.0),
        "mixture": (f"{RUN}/run.json", "mixture:0:1:medu_science_qa", 60.0),
        "evaluation.results.next_word.value": (f"{RUN}/evaluation.json", "results:0:value", 0.99),
        "gates.model.passes": (f"{VERDICTS}/model.json", "passes", False),
        "data.flan.manifest_digest": (f"{VERDICTS}/data.json", "judged:flan", ZEROS),
        "lineage.kestrel.params_digest": ("runs/tiny-proxy/kestrel/result.json", "params_digest", ZEROS),
        "order.seed": (f"{RUN}/checkpoints/52/about/metadata", "contract:seed", 77),
    },
    {
        f"digests.{RUN}/evaluation.json": (f"{RUN}/evaluation.json", "results:0:answers:0:id", "x"),
        "gates.model.judged.parent's evaluation": ("runs/tiny-proxy/kestrel/evaluation.json", "macro_bits_per_byte", 0.5),
    },
)
OTHERS: tuple[dict[str, Callable[[Carded], None]], ...] = (
    {f"digests.{VERDICTS}/data/mixture.parquet": evidence, "gates.health.judged": metrics},
    {
        "data.flan.manifest_digest": whole_manifest,
        "gates.health: the home has no": lambda carded: (carded.home / VERDICTS / "health.json").unlink(),
    },
)


@pytest.mark.parametrize("number", [0, 1, None], ids=["records", "others", "bytes"])
def test_lies_in_the_home_are_named(number: int | None, carded: Carded):
    if number is None:
        for pattern in BYTES.values():
            flip(carded, pattern)
        return check_named(carded, list(BYTES))
    for path, field, value in SEALED[number].values():
        carded.edit(path, lambda content, field=field, value=value: put(content, field, value))
    for edit in OTHERS[number].values():
        edit(carded)
    return check_named(carded, [*SEALED[number], *OTHERS[number]])
