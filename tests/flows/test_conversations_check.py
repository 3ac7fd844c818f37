"""Answers are predicted of conversations alone: what else is asked is refused before anything is made."""

from pathlib import Path

import pytest

from phasewise.flows.checks import check_sources
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.feasibility import check_conversations
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.source import Source
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError, RecipeError


def test_answers_of_plain_text_are_refused_by_name(tmp_path: Path):
    recipe = load_record("marin-8b", "proxy")
    sft = [recipe.phase("sft")]
    check_conversations(recipe, recipe.phases)
    plain = Source(url=str(tmp_path), include=("*.jsonl",), format="jsonl").model_dump(mode="json")
    own = Recipe.model_validate({**recipe.model_dump(mode="json"), "sources": {"smoltalk": plain}})
    with pytest.raises(RecipeError, match=r"phase sft of marin-8b-proxy has loss_on answers.* and smoltalk is plain text: give each"):
        check_conversations(own, sft)
    check_conversations(own, [own.phase("kestrel")])


def test_a_template_that_does_not_say_what_an_answer_is_is_refused_before_anything_is_made(tmp_path: Path):
    recipe = load_record("marin-8b", "proxy")
    how = {"messages": "messages", "template": "{% for message in messages %}{{ message.content }}{% endfor %}"}
    source = Source.model_validate({"url": str(tmp_path), "include": ("*.jsonl",), "format": "jsonl", "conversation": how})
    own = Recipe.model_validate({**recipe.model_dump(mode="json"), "sources": {"smoltalk": source.model_dump(mode="json")}})
    with pytest.raises(RecipeError, match=r"the chat template of smoltalk does not say what an answer is: put \{% generation %\}"):
        check_conversations(own, [own.phase("sft")])


def test_a_template_that_fails_is_refused_before_anything_is_read(tmp_path: Path):
    recipe = load_record("marin-8b", "proxy")
    (tmp_path / "a.jsonl").write_text("{}")
    how = {"messages": "messages", "template": "{% for message in messages %}{{ message.contents }}{% endfor %}"}
    source = Source.model_validate({"url": str(tmp_path), "include": ("*.jsonl",), "format": "jsonl", "conversation": how})
    own = Recipe.model_validate({**recipe.model_dump(mode="json"), "sources": {"smoltalk": source.model_dump(mode="json")}})
    with pytest.raises(DataError, match="at a conversation that is made up: UndefinedError: 'dict object' has no attribute 'contents'"):
        check_sources(own, Home.open(str(tmp_path / "home")))
