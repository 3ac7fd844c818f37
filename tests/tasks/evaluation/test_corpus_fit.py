import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, models, pre_tokenizers

from phasewise.tasks.data.tokenizer import SpecialTokens, load_tokenizer
from phasewise.tasks.evaluation import corpus_fit
from phasewise.tasks.evaluation import held_out as held_out_module
from phasewise.tasks.evaluation.corpus_fit import (
    Corpus,
    Document,
    SubsetText,
    TokenizedText,
    measure_fit,
    rolling_windows,
    tokenize,
    write_rows,
)
from phasewise.tasks.evaluation.held_out import HeldOutTokens, read_held_out_texts, read_held_out_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.model_loading import Model, compare_tokens
from phasewise.tasks.evaluation.ngram_baselines import ByteNgram, ngram_bits_per_byte
from phasewise.tasks.evaluation.scoring import bits_per_byte
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.config import Execution, LossEvaluation, ModelConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.loop import build_evaluate
from phasewise.trainer.model.params import Params
from tests.shared_data import shared_folder
from tests.tasks.data.conversation_worlds import layout, made_conversations, write_caches, write_source
from tests.tasks.evaluation.conftest import HeldOut, LogSoftmax, WriteCache

TOLERANCE_NATS_PER_TOKEN = 1e-5  # two computations in float32 whose rows are laid out otherwise


@pytest.fixture(scope="module")
def documents(held_out_texts: HeldOut) -> list[Document]:
    """Longer and shorter than a window, of 48 tokens; bytes that are no letters; one of a single token."""
    texts = [Document(name, each.id[:6], each.text) for name, of_name in held_out_texts.items() for each in of_name[:3]]
    return [*texts, Document("law", "short", "ba ce"), Document("law", "foreign", "é — 漢字 🙂\n\n\tba"), Document("one", "token", "b")]


def test_it_is_lm_eval_s_rolling_log_likelihood(documents: list[Document], model: JaxLanguageModel):
    requests = [Instance("loglikelihood_rolling", {}, (document.text,), number) for number, document in enumerate(documents)]
    theirs = model.loglikelihood_rolling(requests)
    for document, expected in zip(documents, theirs, strict=True):
        found = measure_fit({"last": model.params}, model.config, model.begin_of_text, tokenize([document], model.tokenizer))
        fit = found.subsets[document.subset]
        nats = fit["fit"]["last"]["bits_per_byte"] * fit["text_bytes"] * math.log(2)
        assert nats == pytest.approx(-expected, abs=TOLERANCE_NATS_PER_TOKEN * fit["tokens"])
        assert fit["text_bytes"] == len(document.text.encode())


def test_windows_predict_each_token_once_from_as_much_as_a_window_holds(documents: list[Document], model: JaxLanguageModel):
    for text in tokenize(documents, model.tokenizer):
        windows = rolling_windows(text.tokens, model.config.seq_len, 0)
        assert np.concatenate([window.targets for window in windows]).tolist() == text.tokens.tolist()
        assert all(len(window.inputs) == min(model.config.seq_len, len(text.tokens)) for window in windows)
        assert windows[0].inputs[0] == 0


def test_disjoint_windows_differ_by_the_last(model: JaxLanguageModel, held_out_tokens: Mapping[str, HeldOutTokens], special: SpecialTokens):
    def both(length: int) -> tuple[float, float]:
        held = {name: HeldOutTokens([one.documents[-1][:length]], 100, special) for name, one in held_out_tokens.items()}
        texts = [TokenizedText(name, name, one.documents[0], 100) for name, one in held.items()]
        rolling = measure_fit({"last": model.params}, model.config, model.begin_of_text, texts).macro["last"]["bits_per_byte"]
        return rolling, bits_per_byte(model.params, model.config, held).macro

    for length in (model.config.seq_len - 5, model.config.seq_len, 2 * model.config.seq_len):
        rolling, disjoint = both(length)
        assert rolling == pytest.approx(disjoint, rel=1e-5)
    rolling, disjoint = both(2 * model.config.seq_len - 20)
    assert rolling != pytest.approx(disjoint, rel=1e-4)


def test_the_sum_over_tokens_in_float64(log_softmax: LogSoftmax, model: JaxLanguageModel):
    document = Document("a", "a", "tovu bace dido\n")
    [text] = tokenize([document], model.tokenizer)
    table = log_softmax([0, *text.tokens[:-1]])
    nats = -table[np.arange(len(text.tokens)), text.tokens].sum()
    fit = measure_fit({"last": model.params}, model.config, 0, [text]).subsets["a"]["fit"]["last"]
    assert fit["bits_per_byte"] == pytest.approx(nats / math.log(2) / 15, rel=1e-5)
    assert fit["perplexity_per_byte"] == pytest.approx(math.exp(nats / 15), rel=1e-5)
    assert fit["perplexity_per_token"] == pytest.approx(math.exp(nats / len(text.tokens)), rel=1e-5)


def test_macro_counts_subsets_alike_and_micro_bytes(documents: list[Document], model: JaxLanguageModel):
    average = jax.tree.map(lambda weight: 0.5 * weight, model.params)
    found = measure_fit({"last": model.params, "ema": average}, model.config, 0, tokenize(documents, model.tokenizer))
    for name in ("last", "ema"):
        bits = {subset: fit["fit"][name]["bits_per_byte"] for subset, fit in found.subsets.items()}
        sizes = {subset: fit["text_bytes"] for subset, fit in found.subsets.items()}
        assert found.macro[name]["bits_per_byte"] == pytest.approx(sum(bits.values()) / 4)
        assert found.macro[name]["perplexity_per_byte"] == pytest.approx(2 ** (sum(bits.values()) / 4))
        micro = sum(bits[subset] * size for subset, size in sizes.items()) / sum(sizes.values())
        assert found.micro[name]["bits_per_byte"] == pytest.approx(micro)
        assert found.micro[name] != found.macro[name]
        tokens = sum(fit["tokens"] for fit in found.subsets.values())
        nats = micro * sum(sizes.values()) * math.log(2)
        assert found.micro[name]["perplexity_per_token"] == pytest.approx(math.exp(nats / tokens))
    assert found.macro["last"] != found.macro["ema"]


def test_the_fit_in_training_is_that_of_whole_documents(
    documents: list[Document], caches: Mapping[str, Path], model: JaxLanguageModel, tmp_path: Path
):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "short.txt").write_text("ba ce di fo")
    (folder / "long.txt").write_text(documents[0].text)  # of more rows than there is room for
    (folder / "two.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("ba ce", documents[0].text, "di")))
    length = model.config.seq_len
    rows = write_rows(Corpus(folder), model.tokenizer, 0, tmp_path / "rows.npz", seq_len=length, rows=2)
    held_out = {name: str(path) for name, path in caches.items()}
    evaluation = LossEvaluation(every_steps=1, sequences=2, caches=held_out, own_text=str(rows))
    row = build_evaluate(evaluation, model.config, Execution())(model.params, None)
    tokens = model.tokenizer.encode(documents[0].text, add_special_tokens=False).ids[: 2 * (length - 1)]
    texts = {"short.txt": "ba ce di fo", "long.txt": model.tokenizer.decode(tokens), "two.jsonl": "ba ce"}
    sequence_of = {name: model.tokenizer.encode(text, add_special_tokens=False).ids for name, text in texts.items()} | {"long.txt": tokens}
    sizes = {name: len(text.encode()) for name, text in texts.items()}
    bits = dict.fromkeys(texts, 0.0)
    for name, ids in sequence_of.items():
        for start in range(0, len(ids), length - 1):
            text = TokenizedText(name, name, np.array(ids[start : start + length - 1], np.int32), 1)
            begin = ids[start - 1] if start else 0
            bits[name] += measure_fit({"last": model.params}, model.config, begin, [text]).subsets[name]["fit"]["last"]["bits_per_byte"]
    for name in texts:
        assert row[f"own_text_bits_per_byte/{name}"] == pytest.approx(bits[name] / sizes[name], rel=1e-5)
    assert row["own_text_bits_per_byte"] == pytest.approx(np.mean([bits[name] / sizes[name] for name in texts]), rel=1e-5)
    assert row["own_text_bits_per_byte_micro"] == pytest.approx(sum(bits.values()) / sum(sizes.values()), rel=1e-5)
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    with pytest.raises(DataError, match="found a damaged file"):
        build_evaluate(evaluation, model.config, Execution())


def test_two_models_differ_in_the_token_that_one_dislikes_at_the_end_of_a_text(documents: list[Document], model: JaxLanguageModel):
    """As Marin's cooldown disliked the final spaces of some subsets: here the head's column of the space is turned."""
    (space,) = model.tokenizer.encode(" ", add_special_tokens=False).ids
    turned = {**model.params, "head": model.params["head"].at[:, space].multiply(-1)}
    ending = [Document("spaces", f"{one.where}, with a space", one.text.strip() + "\n ") for one in documents[:3]]
    models = Model(model.params, model.config), Model(turned, model.config)
    found = compare_tokens(models, model.tokenizer, 0, tokenize([*documents, *ending], model.tokenizer))
    last = next(row for row in found["tokens"] if row["token"] == space and row["is_last"])
    assert (last["text"], last["count"]) == (" ", 3)
    assert sum(row["share"] for row in found["tokens"]) <= 1 + 1e-9
    fit = [measure_fit({"last": one.params}, model.config, 0, tokenize(documents, model.tokenizer)).subsets for one in models]
    for row in found["subsets"]:
        if row["name"] != "spaces":
            bits = [one[row["name"]]["fit"]["last"]["bits_per_byte"] for one in fit]
            assert [row["bits_per_byte"], row["against_bits_per_byte"]] == pytest.approx(bits, rel=1e-5)
    worst = found["passages"][0]
    assert abs(worst["nats"] - worst["against_nats"]) == max(abs(one["nats"] - one["against_nats"]) for one in found["passages"])
    same = compare_tokens((models[0], models[0]), model.tokenizer, 0, tokenize(documents, model.tokenizer))
    assert same["tokens"] == []
    with pytest.raises(DataError, match="at least one text"):
        compare_tokens(models, model.tokenizer, 0, [])


def test_how_much_is_held_at_once_changes_nothing(documents: list[Document], model: JaxLanguageModel, monkeypatch: pytest.MonkeyPatch):
    whole = measure_fit({"last": model.params}, model.config, 0, tokenize(documents, model.tokenizer))
    monkeypatch.setattr(corpus_fit, "BATCH_TOKENS", 1)
    one_by_one = measure_fit({"last": model.params}, model.config, 0, tokenize(documents, model.tokenizer))
    assert one_by_one.subsets.keys() == whole.subsets.keys()
    assert one_by_one.micro["last"]["bits_per_byte"] == pytest.approx(whole.micro["last"]["bits_per_byte"], rel=1e-5)


def test_no_text_lost_text_and_diverged_weights_are_errors(documents: list[Document], model: JaxLanguageModel, broken_params: Params):
    with pytest.raises(DataError, match="at least one text"):
        measure_fit({"last": model.params}, model.config, 0, [])
    with pytest.raises(EvaluationError, match=rf"found nan for {documents[0].where} \(weights ema\)"):
        measure_fit({"last": model.params, "ema": broken_params}, model.config, 0, tokenize(documents, model.tokenizer))
    lossy = Tokenizer(models.WordLevel({"known": 0, "?": 1}, unk_token="?"))
    lossy.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    with pytest.raises(DataError, match=r"must spell it again, found others for a\.txt"):
        list(tokenize([Document("a", "a.txt", "known unknown")], lossy))


def test_real_text_is_read_whole(tokenizer: Tokenizer):
    path = shared_folder("corpora") / "SOURCES.md"
    corpus = Corpus(path)
    [text] = tokenize(corpus.documents(), tokenizer)
    assert corpus.subsets[path.name].text_bytes == text.text_bytes == path.stat().st_size
    assert 0 < len(text.tokens) < text.text_bytes


TEXTS = ["one little text\n", "and another — with a dash\n"]


def lines_of(texts: list[str], key: str = "text") -> bytes:
    return "".join(json.dumps({key: text}) + "\n" for text in texts).encode()


def read(folder: Path, text_key: str = "text") -> tuple[list[Document], dict[str, SubsetText]]:
    corpus = Corpus(folder, text_key=text_key)
    return list(corpus.documents()), corpus.subsets


def one(folder: Path) -> SubsetText:
    [subset] = read(folder)[1].values()
    return subset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    (root / "books" / "old").mkdir(parents=True)
    (root / "plain.txt").write_text(TEXTS[0])
    (root / "notes.md").write_text(TEXTS[1])
    (root / "rows.jsonl").write_bytes(lines_of(TEXTS))
    (root / "packed.jsonl.gz").write_bytes(gzip.compress(lines_of(TEXTS)))
    pq.write_table(pa.table({"text": TEXTS}), root / "table.parquet")
    (root / "books" / "a.txt").write_text("a book\n")
    (root / "books" / "old" / "b.jsonl").write_bytes(lines_of(["another book\n"]))
    return root


def test_each_file_and_each_folder_is_a_subset(folder: Path):
    documents, subsets = read(folder)
    texts = {name: [document.text for document in documents if document.subset == name] for name in subsets}
    assert texts == {
        "books": ["a book\n", "another book\n"], "notes.md": [TEXTS[1]], "packed.jsonl.gz": TEXTS, "plain.txt": [TEXTS[0]],
        "rows.jsonl": TEXTS, "table.parquet": TEXTS,
    }  # fmt: skip
    assert one(folder / "plain.txt").documents == 1
    assert {name: (found.files, found.documents) for name, found in subsets.items()}["books"] == (2, 2)
    assert all(found.text_bytes == sum(len(text.encode()) for text in texts[name]) for name, found in subsets.items())
    assert subsets["rows.jsonl"].text_digest == subsets["table.parquet"].text_digest != subsets["notes.md"].text_digest
    assert {name: found.copies for name, found in subsets.items()} == {
        "books": 0, "notes.md": 0, "packed.jsonl.gz": 1, "plain.txt": 1, "rows.jsonl": 2, "table.parquet": 2
    }  # fmt: skip


def test_a_file_that_is_added_changed_or_copied_is_seen(tmp_path: Path):
    subset = tmp_path / "corpus" / "subset"
    subset.mkdir(parents=True)
    (subset / "a.txt").write_text("some text")
    before = one(subset.parent)
    (subset / "b.txt").write_text("some text")
    copied = one(subset.parent)
    assert (copied.files, copied.documents, copied.copies, copied.text_bytes) == (2, 2, 1, 18)
    assert copied.text_digest != before.text_digest
    (subset / "b.txt").write_text("same text")
    assert one(subset.parent).copies == 0
    assert len({before.text_digest, copied.text_digest, one(subset.parent).text_digest}) == 3
    (subset / "b.txt").rename(subset / "0.txt")
    renamed = one(subset.parent)
    (subset / "0.txt").rename(subset / "b.txt")
    assert renamed.text_digest == one(subset.parent).text_digest, "names and order change no text"


def test_one_text_is_one_text_however_it_is_written(tmp_path: Path):
    plain, marked = b"caf\xc3\xa9\nbar\n", b"\xef\xbb\xbfcaf\xc3\xa9\nbar\n"  # the reader takes a byte order mark for a signature
    for content, normalized in ((plain, 0), (marked, 0), (b"caf\xc3\xa9\r\nbar\r\n", 1), (b"cafe\xcc\x81\nbar\n", 1)):
        (tmp_path / "a.txt").write_bytes(content)
        [document], subsets = read(tmp_path)
        found = subsets["a.txt"]
        assert (document.text, found.text_bytes, found.normalized) == ("café\nbar\n", 10, normalized)


def test_empty_documents_are_counted_and_not_measured_and_another_key_is_looked_for_where_it_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(lines_of(["", "some text", " \n\t"]))
    found = one(tmp_path)
    assert (found.documents, found.empty_documents, found.text_bytes) == (1, 2, 9)
    (tmp_path / "a.jsonl").write_bytes(lines_of(TEXTS, "body"))
    with pytest.raises(DataError, match=r"a\.jsonl, byte 0: missing key .*--text-key names another"):
        read(tmp_path)
    assert [document.text for document in read(tmp_path, "body")[0]] == TEXTS


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.txt", b"caf\xe9 au lait", r"a\.txt, file: not UTF-8"),
    ("a.txt", b"", r"every subset must have text, found none in .*a\.txt \(1 empty"),
    ("a.txt", "wide".encode("utf-16"), r"a\.txt, file: other format .*UTF-16"),
    ("a.jsonl", b'{"text": "fine"}\n{"text": "broken\n', r"a\.jsonl, byte 17: broken JSON"),
    ("a.jsonl", b'{"text": "fine"}\n{"text": 3}\n', r"a\.jsonl, byte 17: wrong type"),
    ("a.jsonl", b'{"text": "half \\ud800"}\n', r"a\.jsonl, byte 0: half a surrogate pair"),
    ("a.json", b'[\n {"text": "a list"}\n]\n', r"a\.json, file: other format .*one JSON array"),
    ("a.parquet", b"PAR1 and no table", r"a\.parquet, file: "),
    ("a.jsonl.gz", gzip.compress(lines_of(TEXTS))[:-12], r"a\.jsonl\.gz, file: truncated"),
    ("a.txt", b" \n", r"every subset must have text, found none in .*a\.txt \(1 empty"),
])  # fmt: skip
def test_what_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes, said: str):
    (tmp_path / "0.txt").write_text("a text that can be read")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        read(tmp_path)


def test_hidden_files_are_counted_and_a_missing_or_empty_folder_links_and_unknown_endings_are_refused(folder: Path, tmp_path: Path):
    (folder / ".notes.txt").write_text("hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("hidden")
    assert Corpus(folder).hidden == 2
    assert ".notes.txt" not in Corpus(folder).subsets
    with pytest.raises(ConfigError, match="found none at"):
        Corpus(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="must hold a file"):
        Corpus(tmp_path / "empty")
    (folder / "gone.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"gone\.txt \(broken link\)"):
        Corpus(folder)
    (tmp_path / "gone.txt").write_text("elsewhere")
    with pytest.raises(DataError, match=r"gone\.txt \(outside the root\)"):
        Corpus(folder)
    (folder / "gone.txt").unlink()
    (folder / "books" / "c.pdf").write_bytes(b"%PDF-1.7")
    (folder / "LICENCE").write_text("text, but who knows")
    with pytest.raises(DataError, match=r"must end in \.txt.*found LICENCE, books/c\.pdf"):
        Corpus(folder)


Caches = Mapping[str, Path]


def test_a_uniform_model_needs_log2_of_the_vocabulary(model: JaxLanguageModel, caches: Caches):
    held_out, blind = read_held_out_tokens(caches, model.tokenizer), {**model.params, "head": np.zeros_like(model.params["head"])}
    measured = bits_per_byte(blind, model.config, held_out)
    for component, held in held_out.items():
        expected = math.log2(model.config.vocab_size) * sum(map(len, held.documents)) / held.text_bytes
        assert measured.components[component] == pytest.approx(expected, rel=1e-5)
    assert measured.macro == pytest.approx(np.mean(list(measured.components.values())))


def test_equals_a_direct_sum_over_windows(params: Params, config: ModelConfig, log_softmax: Callable[[np.ndarray], np.ndarray]):
    documents = [np.random.default_rng(seed).integers(2, config.vocab_size, length) for seed, length in enumerate((5, 48, 49, 130))]
    bits = 0.0
    for document in documents:
        sequence = np.concatenate([[0], document])
        for start in range(0, len(document), config.seq_len):
            inputs = sequence[start : start + config.seq_len][: len(document) - start]
            targets = document[start : start + config.seq_len]
            bits -= log_softmax(inputs)[np.arange(len(targets)), targets].sum() / math.log(2)
    measured = bits_per_byte(params, config, {"code": HeldOutTokens(documents, 700, SpecialTokens(0, 1))})
    assert measured.components["code"] == pytest.approx(bits / 700, rel=1e-5)


def test_documents_come_back_as_far_as_they_are_asked_for(
    caches: Caches, tokenizer: Tokenizer, held_out_texts: HeldOut, monkeypatch: pytest.MonkeyPatch
):
    assert read_held_out_texts(caches, tokenizer) == held_out_texts
    tokens = read_held_out_tokens(caches, tokenizer)
    assert tokens["code"].text_bytes == sum(len(document.text.encode()) for document in held_out_texts["code"])
    assert tokens["code"].documents[0].tolist() == tokenizer.encode(held_out_texts["code"][0].text).ids
    whole = read_held_out_tokens(caches, tokenizer)["law"]
    first, second = (len(document) for document in whole.documents[:2])
    for max_tokens, count in ((1, 1), (first, 1), (first + 1, 2), (first + second, 2), (10**9, len(whole.documents))):
        less = read_held_out_tokens(caches, tokenizer, max_tokens=max_tokens)["law"]
        assert len(less.documents) == count
        assert less.text_bytes == sum(len(document.text.encode()) for document in held_out_texts["law"][:count])
    first, second = held_out_texts["law"][:2]
    monkeypatch.setattr(held_out_module, "MAX_HELD_OUT_CHARACTERS", len(first.text) + len(second.text))
    assert read_held_out_texts(caches, tokenizer)["law"][:2] == [first, second]
    monkeypatch.setattr(held_out_module, "MAX_HELD_OUT_CHARACTERS", len(first.text) + len(second.text) - 1)
    assert read_held_out_texts(caches, tokenizer)["law"][1].text == second.text.rpartition(" ")[0]
    monkeypatch.setattr(held_out_module, "MAX_HELD_OUT_CHARACTERS", len(first.text) + 100)
    found = read_held_out_texts(caches, tokenizer)["law"]
    assert found[0] == first
    assert [document.id for document in found] == [first.id, second.id]
    assert found[1].text
    assert second.text[:101].startswith(f"{found[1].text} ")


def test_of_conversations_the_tokens_that_the_template_writes_count_in_part_as_in_whole(tmp_path: Path):
    template = "{% for m in messages %}<|turn|>{{ m.content }}{{ eos_token }}{% endfor %}"
    write_caches(write_source(tmp_path / "source", layout("messages", template), made_conversations(60)), tmp_path)
    tokenizer = load_tokenizer(tmp_path / "tokenizer" / "tokenizer.json")
    manifest = read_manifest(tmp_path / "held_out")
    for max_tokens in (None, 10**9):
        found = read_held_out_tokens({"talk": tmp_path / "held_out"}, tokenizer, max_tokens=max_tokens)["talk"]
        assert found.text_bytes == manifest.text_bytes
        assert sum(map(len, found.documents)) == manifest.tokens - 2 * manifest.documents


def test_other_caches_are_refused(tmp_path: Path, tokenizer: Tokenizer, write_cache: WriteCache, held_out_texts: HeldOut, caches: Caches):
    with pytest.raises(DataError, match="at least one component"):
        read_held_out_tokens({}, tokenizer)
    with pytest.raises(DataError, match="law must have held-out text, found 0 bytes"):
        read_held_out_tokens({"law": write_cache(tmp_path / "law", [])}, tokenizer)
    with pytest.raises(DataError, match="found the split 'train'"):
        read_held_out_tokens({"code": write_cache(tmp_path / "code", held_out_texts["code"], "train")}, tokenizer)
    swapped = tokenizer.to_str().replace("begin_of_text", "?").replace("end_of_text", "begin_of_text").replace("?", "end_of_text")
    with pytest.raises(DataError, match="found the ids 1 and 0 in the tokenizer, 0 and 1 in questions"):
        read_held_out_tokens(caches, Tokenizer.from_str(swapped))


TRAIN = ["the cat sat on the mat", "a cat é ate the rat", "", "x", "the\nthe\nthe", "aaaaaaaa"]
UNSEEN = ["the bat sat", "é", "zq", "at the rat the cat\n"]


class SlowNgram:
    def __init__(self, texts: list[str], max_order: int) -> None:
        self.followers: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
        for data in (text.encode() for text in texts):
            for position, byte in enumerate(data):
                for length in range(min(position, max_order - 1) + 1):
                    self.followers[data[position - length : position]][byte] += 1

    def probability(self, byte: int, context: bytes) -> float:
        below = self.probability(byte, context[1:]) if context else 1 / 256
        seen = self.followers.get(context)
        return (seen[byte] + len(seen) * below) / (seen.total() + len(seen)) if seen else below


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6, 8])
def test_equals_the_recursion_over_dictionaries(order: int):
    slow = SlowNgram(TRAIN, order)
    places = [(data, place) for data in (text.encode() for text in UNSEEN) for place in range(len(data))]
    expected = [slow.probability(data[place], data[max(0, place - order + 1) : place]) for data, place in places]
    np.testing.assert_allclose(ByteNgram.fit(TRAIN, order).probabilities(UNSEEN)[-1], expected, rtol=1e-12)
    np.testing.assert_allclose(ByteNgram.fit(TRAIN, 8).probabilities(UNSEEN)[order - 1], expected, rtol=1e-12)


@pytest.mark.parametrize("context", ["", "t", "th", "zz", "the ", "aaaa"])
def test_probabilities_of_all_bytes_sum_to_one(context: str):
    # Only 128 bytes are a text by themselves: the share of the others follows from symmetry, as none above 127 but é was seen.
    model = ByteNgram.fit([text.replace("é", "e") for text in TRAIN], 5)
    ascii_mass = sum(model.probabilities([context + chr(byte)])[:, -1] for byte in range(128))
    unseen = model.probabilities([context + chr(127)])[:, -1]
    np.testing.assert_allclose(ascii_mass + 128 * unseen, 1, rtol=1e-12)


def test_bits_per_byte_by_order_and_component_and_refusals():
    model = ByteNgram.fit(["ab", "cd"], 2)
    joined = model.probabilities(["bc"])[1, -1]
    apart = model.probabilities(["b", "c"])[1, -1]
    assert joined == apart == pytest.approx((1 + 4 / 256) / 8)
    assert model.probabilities(["ab"])[1, -1] == pytest.approx((1 + joined) / 2)
    held_out = {"prose": ["the cat sat", "the rat"], "other": ["zzzz"]}
    measured = ngram_bits_per_byte(TRAIN, held_out, orders=(3, 5))
    probabilities = ByteNgram.fit(TRAIN, 3).probabilities(held_out["prose"])[-1]
    assert measured[3].components["prose"] == pytest.approx(-sum(map(math.log2, probabilities)) / 18)
    assert measured[5].macro == pytest.approx(np.mean([*measured[5].components.values()]))
    assert measured[3].components["prose"] < 8 < measured[3].components["other"]
    with pytest.raises(DataError, match="found 0 bytes"):
        ByteNgram.fit(["", ""], 3)
    with pytest.raises(DataError, match="found none for law"):
        ngram_bits_per_byte(TRAIN, {"code": ["x"], "law": [""]})
    with pytest.raises(ValueError, match="between 1 and 8"):
        ByteNgram.fit(TRAIN, 9)
