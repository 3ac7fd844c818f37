"""What tokenizers make of other scripts: `python -m tests.pulse.other_scripts FOLDER [--translations DIR] [--domains NAMES]`.

The text is that of translations (gettext's `.mo` files), which many packages bring: the same sentences in each language. Without
`--translations` it is humanize's, which is little. Of each language one message in two, by its digest, is trained on, and the others are
written to FOLDER/text, a file a language. A tokenizer of each split is trained on all languages together and written to
FOLDER/tokenizers. Then `phasewise tokenizer compare FOLDER/tokenizers/* --on FOLDER/text` gives the tables; `docs/tokenizers.md` has them.
"""

import argparse
import gettext
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import humanize

from tasks.data.vocabularies.splits import SPLITS
from tasks.data.vocabularies.training import train
from trainer.base.storage import write_atomically

LANGUAGES = (
    "zh_CN", "ja", "ko", "th", "ar", "fa", "he", "hi", "bn", "ta", "te", "ml", "kn", "gu", "pa", "si", "km", "ru", "uk", "el", "ka", "vi",
    "tr", "de", "fr",
)  # fmt: skip
VOCAB_SIZE, MAX_BYTES = 8_192, 60_000
MIN_MESSAGES = 20


def messages(folder: Path, language: str, domains: Sequence[str]) -> list[str]:
    """The translations of a language, each once, in an order of its own; none where there are too few to say anything.

    Args:
        domains: names of the files, without `.mo`; none are all.
    """
    found: set[str] = set()
    for path in sorted(folder.glob(f"{language}*/LC_MESSAGES/*.mo")):
        if path.parts[-3].partition("@")[0] not in (language, *_territories(language, path)) or (domains and path.stem not in domains):
            continue
        with open(path, "rb") as file:
            catalog: dict[object, str] = gettext.GNUTranslations(file)._catalog  # pyright: ignore  # it has no other way to list them
        found |= {text for source, text in catalog.items() if source and text and text != source}
    return sorted(found) if len(found) >= MIN_MESSAGES else []


def _territories(language: str, path: Path) -> tuple[str, ...]:
    """`ja_JP` is `ja`, and `zh_TW` is not `zh_CN`."""
    return () if "_" in language else (path.parts[-3],) if path.parts[-3].startswith(f"{language}_") else ()


def halves(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """What is trained on, and what is held out."""
    trained: list[str] = []
    held_out: list[str] = []
    for text in texts:
        (trained if hashlib.sha256(text.encode()).digest()[0] % 2 else held_out).append(text)
    return trained, held_out


def main(folder: Path, *, translations: Path, domains: Sequence[str], vocab_size: int) -> None:
    """Write text and tokenizers, and say how much there is."""
    components: dict[str, list[str]] = {}
    for language in LANGUAGES:
        components[language], held_out = halves(messages(translations, language, domains))
        if held_out:
            text = "\n".join(held_out) + "\n"
            write_atomically(folder / "text" / f"{language}.txt", text.encode())
            print(
                f"{language}: {len(components[language]):,} messages to train on, {len(held_out):,} held out, {len(text.encode()):,} bytes"
            )
    spoken = {name: texts for name, texts in components.items() if texts}
    for split in SPLITS:
        trained = train(spoken, vocab_size, split=split, max_bytes=MAX_BYTES)
        write_atomically(folder / "tokenizers" / split / "tokenizer.json", trained.content.encode())
    print(f"{len(SPLITS)} tokenizers of {vocab_size:,} entries, at most {MAX_BYTES:,} bytes of each language: {folder / 'tokenizers'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--translations", type=Path, default=Path(humanize.__file__).with_name("locale"))
    parser.add_argument("--domains", default="", help="Names of their files, with commas between; none are all.")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    asked = parser.parse_args()
    named = [name for name in asked.domains.split(",") if name]
    main(asked.folder, translations=asked.translations, domains=named, vocab_size=asked.vocab_size)
