"""Small tokenizers as the families' files have them, trained on a text."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_bytes(texts: Sequence[str], special: Sequence[str], pre_tokenizer: Any) -> Tokenizer:
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _sentence_piece(texts: Sequence[str], special: Sequence[str], normalizer: Any, pre_tokenizer: Any) -> Tokenizer:
    tokenizer: Any = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    strip = [decoders.Strip(" ", 1, 0)] if normalizer is None or "Prepend" in repr(normalizer) else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*special, *BYTES], show_progress=False)
    tokenizer.train_from_iterator([" ".join(texts)[:20_000]], trainer)
    written: dict[str, Any] = json.loads(tokenizer.to_str())
    written["added_tokens"] = [one for one in written["added_tokens"] if one["content"] in special]  # bytes are tokens of the model
    return Tokenizer.from_str(json.dumps(written))


def _begins(tokenizer: Any, token: str) -> Tokenizer:
    ids = [(token, tokenizer.token_to_id(token))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B:1", special_tokens=ids)
    return tokenizer


def _gpt2(texts: Sequence[str]) -> Tokenizer:
    return _by_bytes(texts, ["<|endoftext|>"], pre_tokenizers.ByteLevel(add_prefix_space=False))


def _qwen(texts: Sequence[str]) -> Tokenizer:
    cut = [pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer: Any = _by_bytes(texts, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.Sequence(cut))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _llama3(texts: Sequence[str]) -> Tokenizer:
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    return _begins(_by_bytes(texts, special, pre_tokenizers.ByteLevel(add_prefix_space=False)), special[0])


def _llama2(texts: Sequence[str]) -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _begins(_sentence_piece(texts, ["<unk>", "<s>", "</s>"], normalizer, None), "<s>")


def _mistral(texts: Sequence[str]) -> Tokenizer:
    pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return _begins(_sentence_piece(texts, ["<unk>", "<s>", "</s>"], None, pre_tokenizer), "<s>")


def _gemma(texts: Sequence[str]) -> Tokenizer:
    normalizer = normalizers.Replace(" ", "▁")
    cut = pre_tokenizers.Split(" ", "merged_with_previous")
    return _begins(_sentence_piece(texts, ["<pad>", "<eos>", "<bos>", "<unk>"], normalizer, cut), "<bos>")


KINDS: dict[str, tuple[Callable[[Sequence[str]], Tokenizer], dict[str, Any], tuple[str | None, str | None]]] = {
    "gpt2": (_gpt2, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, (None, "<|endoftext|>")),
    "qwen": (_qwen, {"bos_token": None, "eos_token": "<|endoftext|>"}, (None, "<|endoftext|>")),
    "llama3": (_llama3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}, ("<|begin_of_text|>", "<|end_of_text|>")),
    "llama2": (_llama2, {"bos_token": {"content": "<s>"}, "eos_token": {"content": "</s>"}}, ("<s>", "</s>")),
    "mistral": (_mistral, {"bos_token": "<s>", "eos_token": "</s>"}, ("<s>", "</s>")),
    "gemma": (_gemma, {"bos_token": "<bos>", "eos_token": "<eos>"}, ("<bos>", "<eos>")),
}
"""Kind → tokenizer, its `tokenizer_config.json`, and the tokens around documents."""


def write_kind(kind: str, texts: Sequence[str], folder: Path) -> Tokenizer:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    build, about, _ = KINDS[kind]
    tokenizer = build(texts)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return tokenizer
