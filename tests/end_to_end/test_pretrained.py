"""From a Hugging Face folder: continued pre-training, fine-tuning with its own template, export, and a phase from that home in another."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.survival.in_turn import InTurn
from experiments.survival.runs import complete
from phasewise.flows.recipes.words import qwen
from phasewise.trainer.base.identity import read_sealed
from phasewise.trainer.checkpoints.state import read_params
from phasewise.trainer.model.hugging_face import read_folder, write_folder
from phasewise.trainer.model.hugging_face_config import read_model
from phasewise.trainer.model.params import init_params
from tests.tasks.conftest import write_lines, write_prose
from tests.tasks.data.tokenizer_kinds import write_kind

TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RECIPE = """
from phasewise.flows.recipes.words import *

SOURCE = "{source}"
ANY = dict(max_score_fall=None, max_score_rise=None, false_refusal_rate=None)
EASY = gates(must_beat_baseline=False, max_increase_bits_per_byte=5.0, max_share_error_points=100.0, max_epochs=None, **ANY)
more = first_phase(
    name="more", start=pretrained(SOURCE), model=like(SOURCE, seq_len=64), stop_step=4, batch=4, gates=EASY,
    learning_rate=wsd(stop_step=4, peak=1e-3, warmup=2, decay=0), mixture={{"notes": 100}},
    evaluation=evaluated(benchmarks=("word_order",)),
)
chat = continued(
    more, name="chat", stop_step=7, fresh=("optimizer",), learning_rate=(constant(4, 7, 1e-3),), mixture=always({{"talk": 100}}),
    packing="pad", loss_on="answers", order=more.order.but(first_step=4),
    declares=("optimizer_state", "mixture", "packing", "loss_on", "order"),
)
SOURCES = {{
    "notes": text("{text}/notes", format="jsonl"),
    "talk": text("{text}/talk", format="jsonl", conversation=Conversation(messages="messages", template=chat_template(SOURCE))),
}}
MINE = Recipe(name="mine", phases=(more, chat), sources=SOURCES)
"""
AGAIN = """again = first_phase(
    name="again", start=pretrained("{home}/runs/mine-own/chat"), stop_step=2, batch=4, gates=EASY, learning_rate=(constant(0, 2, 1e-3),),
    mixture={{"notes": 100}}, evaluation=evaluated(benchmarks=("word_order",)),
)
AGAIN = Recipe(name="again", phases=(again,), sources={{"notes": SOURCES["notes"]}})
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, in_turn: InTurn) -> Path:
    """A folder with the source, the recipe and the home."""
    tmp_path = tmp_path_factory.mktemp("pretrained")
    texts = [write_prose(number, 60) for number in range(120)]
    source, home = tmp_path / "Tiny-Qwen3", tmp_path / "home"
    tokenizer = write_kind("qwen", texts, source.parent / "files")
    model = qwen(num_layers=1, d_model=32, seq_len=128, vocab_size=tokenizer.get_vocab_size() + 3, tied_head=True)
    write_folder(source, init_params(5, model), model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).write_bytes((tmp_path / "files" / name).read_bytes())
    (source / "chat_template.jinja").write_text(TEMPLATE)
    write_lines(tmp_path / "text" / "notes" / "a.jsonl", texts)
    turns = [[{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": text[:60]}] for n, text in enumerate(texts)]
    (tmp_path / "text" / "talk").mkdir()
    (tmp_path / "text" / "talk" / "a.jsonl").write_text("".join(f"{json.dumps({'messages': one})}\n" for one in turns))
    recipe = tmp_path / "mine.py"
    recipe.write_text(RECIPE.format(source=source, text=tmp_path / "text"))

    complete(in_turn("run", f"{recipe}/more", "--home", home, "--json"))
    return tmp_path


def test_a_model_of_the_hub_is_trained_on_and_judged_beside_its_source(trained: Path, in_turn: InTurn, tmp_path: Path):
    source, home, recipe = trained / "Tiny-Qwen3", trained / "home", trained / "mine.py"
    model = read_model(source)
    runs = home / "runs" / "mine-own"
    (imported,) = runs.glob("pretrained-*")
    expected = read_folder(source)[0]
    np.testing.assert_array_equal(read_params(imported / "checkpoints" / "0", model)["embedding"], expected["embedding"])
    run = json.loads((runs / "more" / "run.json").read_text())
    assert run["start"]["params_digest"] == read_sealed(imported / "source.json")["params_digest"]
    first = json.loads((runs / "more" / "metrics.jsonl").read_text().splitlines()[0])
    assert abs(first["loss"] - np.log(model.vocab_size)) < 1  # a random model
    compared = read_sealed(home / "verdicts" / "mine-own" / "more" / "model.json")
    assert "parent's evaluation" in compared["judged"], "the first phase is judged beside its source"
    assert "more: done" in in_turn("status", recipe, "--home", home, "--full").output
    report = (home / "reports" / "mine-own" / "report.html").read_text()
    assert "whether they have seen test items is unknown" in report
    card = in_turn("card", f"{recipe}/more", tmp_path / "card", "--home", home)
    assert card.returncode == 0, card.errors
    lineage = json.loads((tmp_path / "card" / "statement.json").read_text())["predicate"]["claims"]["lineage"]
    assert lineage[0]["pretrained"]["source"] == "Tiny-Qwen3", "no path of this machine"
    assert "The training data of Tiny-Qwen3 are unknown" in (tmp_path / "card" / "README.md").read_text()

    changed = source / "model.safetensors"
    kept = changed.read_bytes()
    changed.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    status = in_turn("status", recipe, "--home", home)
    changed.write_bytes(kept)
    assert "model.safetensors of" in status.output
    assert "changed after its import" in status.output


@pytest.mark.long
def test_its_export_has_the_source_s_template_and_its_weights_are_another_recipe_s_start(trained: Path, in_turn: InTurn, tmp_path: Path):
    home, recipe = trained / "home", trained / "mine.py"
    model, runs = read_model(trained / "Tiny-Qwen3"), home / "runs" / "mine-own"
    complete(in_turn("run", recipe, "--home", home, "--json"))
    exported = in_turn("export", f"{recipe}/chat", tmp_path / "out", "--home", home)
    assert exported.returncode == 0, exported.errors
    about = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (about["bos_token"], about["eos_token"], about["chat_template"]) == (None, "<|im_end|>", TEMPLATE)
    last = read_params(runs / "chat" / "checkpoints" / "7", model)
    np.testing.assert_array_equal(read_folder(tmp_path / "out")[0]["embedding"], last["embedding"])

    other = tmp_path / "again.py"
    other.write_text(recipe.read_text() + AGAIN.format(home=home))
    complete(in_turn("run", f"{other}:AGAIN", "--home", tmp_path / "second", "--json"))
    (imported,) = (tmp_path / "second" / "runs" / "again-own").glob("pretrained-*")
    np.testing.assert_array_equal(read_params(imported / "checkpoints" / "0", model)["embedding"], last["embedding"])
