import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from phasewise.tasks.evaluation import needles as module
from phasewise.tasks.evaluation.gate_benchmarks import check_room, needle_key, needle_results
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.needles import Haystack, Needles, build_items, least_length, lengths_of, needle_suite, words_of_folder
from phasewise.tasks.evaluation.suite import Measured, Options, run_suite
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.validations.verdict import Verdict
from tests.tasks.evaluation.suites.conftest import Scripted
from tests.tasks.evaluation.suites.test_gated import LIMITS, evaluation_of, judge, stops

WORDS = [f"ba{'ce' * (number % 7)}" for number in range(2_000)]
FEW = Needles(length=300, items_per_depth=1, depths=(0.0, 0.5, 1.0))


def run(model: Any, tmp_path: Path, *lengths: int, haystack: Haystack | None = lambda: WORDS) -> Measured:
    how = Options(None, haystack=haystack, needles=FEW)
    return run_suite(needle_suite(lengths, model.max_length), model, how, place=tmp_path / "model", weights="last", about={})


def reader(scripted: Scripted, tokenizer: Tokenizer, **answers: Any) -> Any:
    model = scripted(**answers)
    setattr(model, "tok_encode", lambda text: [0, *tokenizer.encode(text, add_special_tokens=False).ids])  # noqa: B010
    return model


def value_of(prompt: str) -> str:
    key = prompt.rpartition("of the ")[2].removesuffix(" is")
    found = re.search(rf"number of the {key} is (\d+)\.", prompt)
    assert found
    return found[1]


def test_only_who_finds_the_needle_has_points(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    answers = {"score": lambda prompt, text: -float(text.strip() != value_of(prompt)), "say": lambda prompt: f" {value_of(prompt)}. And"}
    rows = run(reader(scripted, tokenizer, **answers), tmp_path, 300, 600).results
    assert [row["benchmark"] for row in rows] == ["niah:300", "niah_written:300", "niah:600", "niah_written:600"]
    assert [row["value"] for row in rows] == [1.0] * 4
    assert {row["items"] for row in rows} == {3}
    assert [row["cut"] for row in rows] == [{"contexts": 0, "of": row["cut"]["of"]} for row in rows if row["cut"]]
    for say in ("", " 111111", " the 123456"):
        model = reader(scripted, tokenizer, say=lambda prompt, said=say: said)
        rows = {row["benchmark"]: row for row in run(model, tmp_path / (say.strip() or "nothing"), 300).results}
        assert rows["niah_written:300"]["value"] == 0.0
        assert (rows["niah:300"]["baseline"] or 0.0) >= 0.25


def test_a_length_that_does_not_fit_and_no_text_are_holes(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    model = reader(scripted, tokenizer)
    rows = run(model, tmp_path, 300, 5_000).results
    assert [row["hole"] is None for row in rows] == [True, True, False, False]
    assert "5,000 tokens, and the model reads 4,096: the needle would be cut off" in (rows[2]["hole"] or "")
    assert all(len(tokenizer.encode(asked[0]).ids) < 300 for asked in model.asked)
    [textless, _] = run(reader(scripted, tokenizer), tmp_path / "none", 300, haystack=None).results
    assert "no text to hide needles in" in (textless["hole"] or "")
    assert "have no room for 4 needles" in (run(reader(scripted, tokenizer), tmp_path / "short", 64).results[0]["hole"] or "")


def test_what_holds_is_read_and_another_text_is_measured_again(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    model = reader(scripted, tokenizer)
    assert run(model, tmp_path, 300).read == ()
    assert run(model, tmp_path, 300).read == ("niah:300", "niah_written:300")
    assert run(model, tmp_path, 300, haystack=lambda: WORDS[1:]).read == ()


def test_lengths_are_named_behind_a_colon_and_words_are_of_a_folder(tmp_path: Path):
    assert [lengths_of(name) for name in ("niah", "niah:8192", "niah:128,256")] == [(), (8_192,), (128, 256)]
    for name in ("niah:", "niah:8k", "niah:10", "niah:128,128", "niah:-128"):
        with pytest.raises(ConfigError, match="must have lengths in tokens, each once and 64 or more"):
            lengths_of(name)
    assert [one.label for one in needle_suite((), 4_096).asked][::2] == ["niah:1024", "niah:2048", "niah:4096"]
    assert [one.label for one in needle_suite((), 100).asked][::2] == ["niah:64", "niah:100"]
    with pytest.raises(DataError, match="put one that the model never saw into niah"):
        words_of_folder(tmp_path)
    (tmp_path / "niah").mkdir()
    (tmp_path / "niah" / "b.txt").write_text("three four")
    (tmp_path / "niah" / "a.txt").write_text("one\ntwo")
    assert words_of_folder(tmp_path) == ["one", "two", "three", "four"]


def test_a_model_of_ours_reads_more_than_it_was_trained_on_where_it_is_told_to(model: JaxLanguageModel, tmp_path: Path):
    assert "the model reads 48" in (run(model, tmp_path, 300).results[0]["hole"] or "")
    with pytest.raises(ConfigError, match="must be more than the 48 tokens"):
        model.read_up_to(48)
    model.read_up_to(320)
    choice, written = run(model, tmp_path, 300).results
    assert (choice["hole"], written["hole"], choice["items"]) == (None, None, 3)
    assert choice["cut"] == {"contexts": 0, "of": 12}
    assert written["cut"] == {"contexts": 0, "of": 3}
    assert "it reads 320 tokens, and was trained on rows of 48" in choice["remarks"]


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ASKS = LIMITS.but(needle_error_rate=0.01)


def measured(scripted: Scripted, tokenizer: Tokenizer, phase: str, *, finds: bool, labels: tuple[str, ...] = ("niah:300",)) -> Any:
    def score(prompt: str, text: str) -> float:
        return -float(text.strip() != value_of(prompt)) if finds else -1.0

    return evaluation_of(needle_results(reader(scripted, tokenizer, score=score), labels, WORDS), phase)


def needle_reasons(verdict: Verdict) -> list[str]:
    return [reason.what for reason in stops(verdict) if reason.what.startswith("niah")]


def test_needles_are_shown_beside_the_parent_and_judged_by_the_limit_of_the_phase(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    blind = measured(scripted, tokenizer, "phase-3", finds=False)
    finds = measured(scripted, tokenizer, "extension", finds=True)
    after = judge(tmp_path, finds, blind, LIMITS)
    [note] = [note for note in after.notes if note.startswith("niah:300 acc: 1.000")]
    assert f"to phase-3's {blind['results'][0]['value']:.3f} on the same 40 items." in note
    table = pd.read_parquet(tmp_path / "evidence" / "needles.parquet")
    assert (table["against"][0], table["difference"][0]) == ("phase-3", 1.0 - blind["results"][0]["value"])
    assert needle_reasons(judge(tmp_path, blind, None, LIMITS)) == []
    assert needle_reasons(judge(tmp_path, finds, blind, ASKS)) == []
    [why] = needle_reasons(judge(tmp_path, blind, None, ASKS))
    assert why.startswith("niah:300 acc does not tell the model from one that finds no needle")

    def score(prompt: str, text: str) -> float:
        return -float(text.strip() != value_of(prompt)) if sum(map(ord, prompt)) % 7 == 0 else -1.0

    some = evaluation_of(needle_results(reader(scripted, tokenizer, score=score), ("niah:300",), WORDS), "x")
    judge(tmp_path, some, None, LIMITS)
    p = float(pd.read_parquet(tmp_path / "evidence" / "needles.parquet")["floor_p_value"][0])
    assert 1e-6 < p < 0.4
    assert needle_reasons(judge(tmp_path, some, None, LIMITS.but(needle_error_rate=1.01 * p))) == []
    assert len(needle_reasons(judge(tmp_path, some, None, LIMITS.but(needle_error_rate=0.99 * p)))) == 1
    parent = measured(scripted, tokenizer, "phase-3", finds=True)
    longer = measured(scripted, tokenizer, "extension", finds=True, labels=("niah:600", "niah:300"))
    notes = [note for note in judge(tmp_path, longer, parent, LIMITS).notes if note.startswith("niah")]
    assert notes[0].startswith("niah:300 acc: 1.000, where a guess has 0.")
    assert "+0.000" in notes[0]
    assert notes[1].endswith("not compared with a parent: phase-3 was never measured on it.")


def test_lengths_without_room_are_refused_and_text_and_length_decide_the_key(scripted: Scripted, tokenizer: Tokenizer):
    with pytest.raises(EvaluationError, match="the phase names niah:5000, which cannot be measured: its items have 5,000 tokens"):
        measured(scripted, tokenizer, "x", finds=True, labels=("niah:5000",))
    check_room("late", ["niah:1000"], tokenizer)
    with pytest.raises(ConfigError, match=r"phase late is too short for niah:64 .*: 2 needles, .* Take niah:\d+ or more"):
        check_room("late", ["niah:64", "niah:1000"], tokenizer)
    before = needle_key(["niah:300"], {"web": "a", "law": "b"})
    assert needle_key(["niah:300"], {"law": "b", "web": "a"}) == before
    assert needle_key(["niah:300"], {"web": "a", "law": "c"}) != before
    assert needle_key(["niah:301"], {"web": "a", "law": "b"})["niah:301"] != before["niah:300"]


def test_a_short_text_has_as_many_needles_as_there_is_room_for(scripted: Scripted, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture):
    def count(text: str) -> int:
        return 1 + len(tokenizer.encode(text, add_special_tokens=False).ids)

    least = {keys: least_length(Needles(length=1000, keys=keys), count) for keys in (2, 3, 4)}
    for keys, length in ((4, least[4]), (3, least[4] - 1), (3, least[3]), (2, least[3] - 1), (2, least[2])):
        label = f"niah:{length}"
        (result,) = measured(scripted, tokenizer, "x", finds=True, labels=(label,))["results"]
        assert {len(answer["log_likelihoods"]) for answer in result["answers"]} == {keys}
        assert (f"{label}: {keys} needles in a text in place of 4" in caplog.text) == (keys < 4)


HAYSTACK = [f"word{number % 97}" for number in range(3_000)]
FOUR = Needles(length=256, items_per_depth=4)


def count_words(text: str) -> int:
    return 1 + len(text.split())


def built(needles: Needles = FOUR) -> list[module.NeedleItem]:
    return build_items(needles, HAYSTACK, count_words)


def test_prompts_fill_the_length_and_leave_room_for_the_answer():
    for length in (128, 256, 1_000, 20_000):
        for item in built(Needles(length=length, items_per_depth=1)):
            assert item.tokens == count_words(item.prompt) == length - module.MAX_NEW_TOKENS
    for item in build_items(Needles(length=2_000, items_per_depth=1), HAYSTACK, lambda text: 1 + len(text)):
        assert 2_000 - module.MAX_NEW_TOKENS - len(" word96") <= 1 + len(item.prompt) <= 2_000 - module.MAX_NEW_TOKENS


@pytest.mark.parametrize("needles", [FOUR, Needles(length=256, keys=8, items_per_depth=4)])
def test_every_key_has_its_value_in_the_prompt_and_the_last_one_is_asked_for(needles: Needles):
    for item in built(needles):
        assert len(set(item.choices)) == needles.keys == len(item.choices)
        assert all(item.prompt.count(choice) == 1 for choice in item.choices)
        assert item.choices[item.gold] == item.answer
        key, _, question = item.prompt.rpartition(item.answer)[0].rpartition(" the ")[2].partition(" is")
        assert item.prompt.endswith(f"The secret number of the {key} is"), question
    for depth in FOUR.depths:
        golds = sorted(item.gold for item in built(needles) if item.depth == depth)
        assert needles.keys > 4 or golds == [0, 1, 2, 3]


def test_the_needle_is_at_its_depth_and_settings_decide_the_items():
    for item in built(Needles(length=2_000, items_per_depth=2)):
        found = item.prompt.split(" ").index(f"{item.answer}.") - len(["The", "secret", "number", "of", "the", "golden", "castle", "is"])
        told = sum(choice in " ".join(item.prompt.split(" ")[:found]) for choice in item.choices)
        words = found - told * len(["The", "secret", "number", "of", "the", "golden", "castle", "is", "123456."])
        all_words = sum(word.startswith("word") for word in item.prompt.split(" "))
        assert abs(words - item.depth * all_words) <= 1
        assert item.needle_token == count_words(" ".join(item.prompt.split(" ")[:found]))
    assert built() == built()
    for change in ({"length": 300}, {"keys": 5}, {"depths": (0.1, 0.2)}):
        assert {item.id for item in built(FOUR.but(**change))}.isdisjoint(item.id for item in built()), change
    assert {item.id for item in built()} < {item.id for item in built(FOUR.but(items_per_depth=6))}
    values = {choice for item in built() for choice in item.choices}
    others = build_items(FOUR, [*HAYSTACK, *sorted(values)], count_words)
    assert not values & {choice for item in others for choice in item.choices}


def test_a_length_without_room_is_refused_with_what_it_takes():
    with pytest.raises(DataError, match=r"64 tokens have no room for 8 needles, .* which take 9\d: take a greater length, or fewer keys"):
        built(Needles(length=64, keys=8))
    with pytest.raises(DataError, match="found no words"):
        build_items(FOUR, [], count_words)
    for fields, bound in (({"length": 10}, 64), ({"keys": 1}, 2), ({"depths": (1.5,)}, 1), ({"keys": 577}, 576)):
        with pytest.raises(ValidationError, match=f"or equal to {bound}"):
            FOUR.but(**fields)
