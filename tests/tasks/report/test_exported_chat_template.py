import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.tasks.data.template import chat_of, template_of, turn_ends
from phasewise.tasks.data.tokenizer import END_OF_TEXT
from phasewise.tasks.report.export import CHAT_TEMPLATE_NAME, differing_fields, opening_answers, tokenizer_files
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import SPLITS, read_manifest
from phasewise.trainer.model.hugging_face import TokenizerFiles
from phasewise.trainer.model.hugging_face_config import to_hugging_face
from tests.tasks.data.conversation_worlds import layout, made_conversations, write_caches, write_source

RECIPES = ("marin-8b", "marin-32b", "trinity-nano")


def eos_ids(written: TokenizerFiles) -> int | list[int]:
    stops = {written.end_of_text, *written.ends_of_turns}
    return written.end_of_text if len(stops) == 1 else sorted(stops)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_changed_field_of_a_folder_of_the_model_is_named(recipe: str, tmp_path: Path):
    model = load_recipe(recipe, "proxy").phases[-1].model
    written = {**to_hugging_face(model, "float32"), "bos_token_id": 1}
    for changed in ({}, *({name: "changed"} for name in to_hugging_face(model, "float32"))):
        (tmp_path / "config.json").write_text(json.dumps({**written, **changed}))
        assert differing_fields(tmp_path, model, "float32") == list(changed)
        assert changed or differing_fields(tmp_path, model, "bfloat16") == ["torch_dtype"]


WITHOUT_BEGIN = """
{% for message in messages %}
<|u|>{{ message.role }}: {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{% endfor %}
"""


def exported(folder: Path, template: str) -> tuple[dict[str, str], list[int] | int, Path]:
    path = folder / "tokenizer" / "tokenizer.json"
    written = tokenizer_files(path, 128, [template_of(layout("messages", template))])
    (folder / "out").mkdir()
    for name, content in written.files.items():
        (folder / "out" / name).write_bytes(content)
    return json.loads(written.files["tokenizer_config.json"]), eos_ids(written), folder / "out"


@pytest.mark.parametrize(("template", "turn_end"), [("marin", "<|eot_id|>"), ("trinity", "<|im_end|>"), (WITHOUT_BEGIN, END_OF_TEXT)])
def test_the_folder_has_the_template_that_was_trained_with(tmp_path: Path, template: str, turn_end: str):
    write_caches(write_source(tmp_path / "source", layout("messages", template), made_conversations(80)), tmp_path)
    about, ends, folder = exported(tmp_path, template)
    text = template_of(layout("messages", template)).text
    expected = "{{ bos_token }}" + text if turn_end == END_OF_TEXT else text
    assert about["chat_template"] == (folder / CHAT_TEMPLATE_NAME).read_text() == expected
    assert about["eos_token"] == turn_end
    cache = TokenCache.open(tmp_path / "train")
    added = {one["content"]: one["id"] for one in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    end = cache.manifest.end_of_text
    assert end is not None
    assert ends == (end if turn_end == END_OF_TEXT else sorted((end, added[turn_end])))
    chats = filter(None, (chat_of(read_manifest(tmp_path / split).source) for split in SPLITS))
    assert turn_ends(chats) == (turn_end,), "for the phase's evaluation"
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed (extra `parity`): what it makes of the folder was not looked at")
    theirs = import_module("transformers").AutoTokenizer.from_pretrained(folder)
    found = {tuple(theirs.apply_chat_template(said, return_dict=True)["input_ids"]) for said in made_conversations(80)}
    documents = [tuple(document.tokens.tolist()) for document in cache.documents()]
    assert len(documents) > 60
    assert {document[:-1] for document in documents} <= found


def test_plain_text_has_no_template_and_one_that_opens_no_answer_is_known(tmp_path: Path):
    write_caches(write_source(tmp_path / "source", layout("messages"), made_conversations(60)), tmp_path)
    written = tokenizer_files(tmp_path / "tokenizer" / "tokenizer.json", 128)
    assert set(written.files) == {"tokenizer.json", "tokenizer_config.json"}
    assert "chat_template" not in json.loads(written.files["tokenizer_config.json"])
    assert (written.begin_of_text, eos_ids(written)) == (0, 1)
    for template, missing in MISSING_OPENINGS.items():
        assert template_of(layout("messages", template)).missing_generation_prompt() == missing, template


CHATML = """
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}

{% endfor %}
"""
OPENING = "<|im_start|>assistant\n"

MISSING_OPENINGS = {
    "marin": "", "trinity": "", CHATML: OPENING, CHATML.strip(): OPENING, WITHOUT_BEGIN: "<|u|>assistant: ",
    CHATML + "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}": "",
    CHATML + "{% if add_generation_prompt and false %}<|im_start|>assistant{% endif %}": OPENING,
    "{% for m in messages %}{{ '[INST] %s [/INST]' % m.content if m.role == 'user' else ' ' + m.content + '</s>' }}{% endfor %}": "",
    "{% for m in messages %}{{ m.content }}{% endfor %}": "",
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ raise_exception('never') }}": "",
}  # fmt: skip


def test_export_asks_for_what_opens_an_answer(tmp_path: Path):
    chat = template_of(layout("messages", CHATML))
    assert opening_answers([], None) == opening_answers([], "add") == []
    good = [template_of(layout("messages", "trinity"))]
    assert opening_answers(good, None) is opening_answers(good, "add") is good
    with pytest.raises(ConfigError, match=r"does not write '<\|im_start\|>assistant\\n', .* Say --generation-prompt add, or none"):
        opening_answers([chat], None)
    assert opening_answers([chat], "none") == [chat]
    (added,) = opening_answers([chat, chat], "add")
    assert added.missing_generation_prompt() == ""
    said = made_conversations(20)
    assert [added.render(one, "") for one in said] == [chat.render(one, "") for one in said]
    question = said[0][:-1]
    assert added.render(question, "", add_generation_prompt=True).text == chat.render(question, "").text + OPENING
    write_caches(write_source(tmp_path / "source", layout("messages", CHATML), made_conversations(60)), tmp_path)
    written = tokenizer_files(tmp_path / "tokenizer" / "tokenizer.json", 128, [added])
    assert "add_generation_prompt" in written.files[CHAT_TEMPLATE_NAME].decode()
