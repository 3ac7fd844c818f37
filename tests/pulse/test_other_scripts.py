"""Text of other scripts: what translations give, and which part of it is trained on."""

from pathlib import Path

import humanize

from tests.pulse.other_scripts import halves, main, messages

LOCALE = Path(humanize.__file__).with_name("locale")


def test_the_messages_are_those_of_the_language_alone():
    russian, chinese = messages(LOCALE, "ru", ()), messages(LOCALE, "zh_CN", ())
    assert any("\u0400" <= character <= "\u04ff" for text in russian for character in text)
    assert any("\u4e00" <= character <= "\u9fff" for text in chinese for character in text)
    assert russian != messages(LOCALE, "uk", ())
    assert messages(LOCALE, "ru", ["none"]) == []


def test_no_message_is_both_trained_on_and_held_out():
    trained, held_out = halves(messages(LOCALE, "ar", ()))
    assert trained
    assert held_out
    assert not {*trained} & {*held_out}


def test_it_writes_text_by_language_and_a_tokenizer_a_split(tmp_path: Path):
    main(tmp_path, translations=LOCALE, domains=(), vocab_size=300)
    assert {"ru.txt", "zh_CN.txt", "ar.txt"} <= {path.name for path in (tmp_path / "text").iterdir()}
    assert sorted(path.parent.name for path in (tmp_path / "tokenizers").glob("*/tokenizer.json")) == [
        "gpt2", "llama2", "llama3", "neox", "trinity"
    ]  # fmt: skip
