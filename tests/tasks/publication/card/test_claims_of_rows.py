"""What a card claims of caches of an earlier format, and of how much was trained on where not every token is predicted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.tasks.publication.card.data_claims import data_claims
from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.tasks.publication.card.readme import build_model_card
from phasewise.tasks.publication.card.training_claims import Trained, training_claims
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.config import Execution
from phasewise.trainer.data.manifest import FORMAT_VERSION, PLAIN_VERSION, read_manifest, write_manifest
from phasewise.trainer.preflight.spec import run_of
from tests.trainer.preflight.models import LLAMA_8B, step_of
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_token_cache


@pytest.mark.parametrize("version", [PLAIN_VERSION, FORMAT_VERSION])
def test_a_manifest_is_claimed_as_it_was_written(tmp_path: Path, version: int):
    """Its digest then follows from the card alone, whichever format it has."""
    folder = write_token_cache(tmp_path / "tokens" / "web" / "train-key", [[np.array([BEGIN, 5, END], np.uint16)]])
    write_manifest(folder, read_manifest(folder).but(format_version=version, component="web"))
    files = HomeFiles(tmp_path)
    claimed = data_claims(files, {"web": read_manifest(folder).digest}, {}, {})["web"]
    assert not files.problems
    assert digest_of_json(claimed["manifest"]) == claimed["manifest_digest"]


def test_the_page_names_chat_template_and_length_bias(tmp_path: Path):
    document = np.array([BEGIN, 5, END], np.uint16)
    digests = dict[str, str]()
    for name, changes in (
        ("talk", {}),
        ("web", {}),
        ("long", {"source": {"length_bias": {"floor": 0.1, "ceiling": 1.0, "full_tokens": 9}}}),
    ):
        folder = tmp_path / "tokens" / name / "train-key"
        write_conversations(folder, [[(document, [(1, 2)])]]) if name == "talk" else write_token_cache(folder, [[document]])
        write_manifest(folder, read_manifest(folder).but(component=name, **changes))
        digests[name] = read_manifest(folder).digest
    data = data_claims(HomeFiles(tmp_path), digests, {}, {})
    origin = {"recipe": "r", "phase": "p", "weights": "last", "step": 2, "steps": [2], "dtype": "float32"}
    page = build_model_card(origin, {"data": data})
    assert page.count("put into text") == 1
    assert "talk has conversations, put into text by the chat template `made up`, which marks the answers." in page
    assert "Of long documents were taken by their length: 100 % from 9 tokens on" in page


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """Two updates, of which the first is passed over, and predicts 7 tokens in the other."""
    rate = {"kind": "constant", "start_step": 0, "end_step": 2, "start": 1e-3, "end": 1e-3}
    run = run_of(step_of(LLAMA_8B, 1), Execution()).but(stop_step=2, learning_rate=[rate])
    folder = tmp_path / "runs" / "r" / "p"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 2, "loss": 2.5, "counted_tokens": 7.0}\n')
    counts = {"tokens": run.model.seq_len, "counted_tokens": 7, "passed_over": [[0, 1]]}
    result = {"run_digest": run.digest, "params_digest": "digest", "final_loss": 2.5, **counts}
    return Trained(run, result, "runs/r/p", "runs/r/p/checkpoints/2")


def problems(root: Path, trained: Trained) -> tuple[dict[str, Any], list[str]]:
    """The claims, and the fields that the home contradicts; it has no checkpoint here."""
    files = HomeFiles(root)
    claims = training_claims(files, trained)
    return claims, [one.field for one in files.problems if one.field != "training.finished"]


def test_what_was_passed_over_is_not_claimed_and_what_was_predicted_is(tmp_path: Path, trained: Trained):
    claims, found = problems(tmp_path, trained)
    assert found == []
    assert (claims["tokens"], claims["counted_tokens"]) == (trained.run.model.seq_len, 7)
    other = trained._replace(result={**trained.result, "tokens": 2 * claims["tokens"], "counted_tokens": 8})
    assert problems(tmp_path, other)[1] == ["training.tokens", "training.counted_tokens"]


def test_the_page_says_that_padding_is_among_the_tokens(tmp_path: Path, trained: Trained):
    claims: dict[str, Any] = {"recipe": "r", "phase": "p", "scale": "own", "training": problems(tmp_path, trained)[0]}
    origin = {"weights": "last", "step": 2, "steps": [2], "dtype": "float32"}
    tokens = trained.run.model.seq_len
    assert f"on {tokens:,} tokens, padding included, of which 7 were predicted." in build_model_card(origin, claims)
    del claims["training"]["counted_tokens"]
    assert f"on {tokens:,} tokens. Its" in build_model_card(origin, claims)
