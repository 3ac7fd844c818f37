import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.scoring import score_windows
from phasewise.tasks.evaluation.settings import Renderings, check_renderings, measure_renderings, read_items, renderings_key
from phasewise.trainer.base.errors import DataError, EvaluationError

Write = Callable[..., Renderings]


def rows(count: int, *, first: int = 0, tag: str = "<<1+1=2>>") -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"question": f"What is {number} + 1?", "answer": f"{number} + 1{tag} is {number + 1}"} for number in numbers]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def build(items: Sequence[Any] = rows(9), reference: Sequence[Any] = rows(8, first=50), **settings: Any) -> Renderings:
        for name, found in (("items", items), ("reference", reference)):
            (tmp_path / f"{name}.jsonl").write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in found))
        fields = {"prompt": "Q: {question}\nA:", "answer": "answer", "left_out": "<<.*?>>"} | settings
        return Renderings(items=str(tmp_path / "items.jsonl"), reference=str(tmp_path / "reference.jsonl"), **fields)

    return build


def test_an_item_has_its_prompt_and_both_answers(write: Write):
    renderings = write([*rows(8), {"question": "No sum?", "answer": "No."}])
    found = read_items(renderings, renderings.items)
    assert found[3] == ("Q: What is 3 + 1?\nA:", " 3 + 1<<1+1=2>> is 4", " 3 + 1 is 4")
    assert len(found) == 8  # the one without a tag has one rendering


@pytest.mark.parametrize(("changed", "said"), [
    ({"items": rows(7)}, r"items.jsonl must have at least 8 items whose two renderings differ, found 7"),
    ({"reference": rows(9, first=50, tag="")}, r"reference.jsonl must have at least 8 items .* found 0: left_out .* matches nothing"),
    ({"items": [*rows(9), "no JSON"]}, r"items.jsonl, line 10 must be a JSON object, and is not"),
    ({"items": [*rows(9), "[1]"]}, r"line 10 must be a JSON object, found list"),
    ({"items": [*rows(9), {"question": "What?", "answer": 4}]}, r"line 10 must have the field answer with text, found"),
    ({"prompt": "{title} {question}"}, r"line 1 must have the field title with text"),
    ({"reference": rows(12, first=8)}, r"1 of .*reference.jsonl are in .*items.jsonl too, such as 'Q: What is 8 \+ 1"),
])  # fmt: skip
def test_files_that_tell_nothing_are_refused(write: Write, changed: dict[str, Any], said: str):
    with pytest.raises(DataError, match=said):
        check_renderings(write(**changed))


def test_each_thing_that_decides_moves_the_key_and_a_missing_file_is_refused(write: Write, tmp_path: Path):
    renderings = write()
    (tmp_path / "reference.jsonl").unlink()
    for ask in (check_renderings, renderings_key):
        with pytest.raises(DataError, match=r"reference.jsonl must .* cannot be read"):
            ask(renderings)
    with pytest.raises(ValidationError, match="left_out must be a regular expression"):
        write(left_out="<<(")
    changes: list[dict[str, Any]] = [{"items": rows(10)}, {"reference": rows(9, first=50)}, {"prompt": "{question}"}, {"left_out": "<<"}]
    keys = [renderings_key(write(**changed)) for changed in ({}, {"answer": "question"}, *changes)]
    assert len({json.dumps(key) for key in keys}) == len(keys)


def test_a_real_model_reads_both(write: Write, model: JaxLanguageModel):
    long = {"question": "What is it? " * 40, "answer": "It is <<1>> much."}
    renderings = write([*rows(9), long], prompt="{question}", left_out="<<.*>>")
    read = measure_renderings(model, renderings)
    assert [len(read["items"][name]) for name in ("first", "second")] == [9, 9]
    assert (read["items"]["too_long"], read["reference"]["too_long"]) == (1, 0)
    item = read_items(renderings, renderings.items)[4]
    encode = model._encode_pair  # pyright: ignore[reportPrivateUsage]  # of lm-eval
    window = model.windows_of([((item.prompt, item.second), *encode(item.prompt, item.second))])
    [expected] = score_windows(model.params, model.config, window)
    assert read["items"]["second"][4] == pytest.approx(float(expected.log_likelihoods.sum()), abs=1e-3)
    assert read["items"]["first"][4] < read["items"]["second"][4]
    with pytest.raises(EvaluationError, match=r"at least 8 items of .*items.jsonl must fit in the \d+ tokens .*, found 0 of 9"):
        measure_renderings(model, write([row | {"question": row["question"] + long["question"]} for row in rows(9)], prompt="{question}"))
