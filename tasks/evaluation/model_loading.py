"""Open a Phasewise checkpoint or a Hugging Face folder for evaluation: weights, tokenizer and chat templates.

Two checkpoints are compared token by token: the subsets, tokens and passages in which they differ most. Marin found by such a comparison
that a deep cooldown disliked the final spaces of some Paloma subsets (8B retrospective, phase 1).
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from tokenizers import Tokenizer

from phasewise.tasks.data import tokenizer as tokenizers_of_home
from phasewise.tasks.data.template import ChatTemplate, chat_of, turn_end_ids
from phasewise.tasks.data.tokenizer import SpecialTokens, load_tokenizer, special_tokens
from phasewise.tasks.evaluation.corpus_fit import TokenizedText, batches_of, rolling_windows
from phasewise.tasks.evaluation.scoring import score_windows
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import CheckpointError, ConfigError, DataError, EvaluationError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.state import read_about, read_params
from phasewise.trainer.config import Mesh, ModelConfig
from phasewise.trainer.data.manifest import Manifest, read_manifest
from phasewise.trainer.model.hugging_face import read_folder
from phasewise.trainer.model.hugging_face_config import read_settings
from phasewise.trainer.model.params import Params, abstract_params
from phasewise.trainer.sharding import build_mesh, check_mesh, state_shardings

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

Weights = Literal["last", "ema"]


def model_of_checkpoint(
    checkpoint: Path, tokenizer: Path, *, weights: Weights = "last", chats: Sequence[ChatTemplate] = (), mesh: Mesh | None = None
) -> "JaxLanguageModel":
    """Open weights of a checkpoint with the training's `tokenizer.json`. A written text ends at the end tokens of `chats`."""
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

    config = ModelConfig.model_validate(read_about(checkpoint)["run"]["model"])
    devices = shardings = None
    if mesh is not None:
        check_mesh(mesh, config)
        devices = build_mesh(mesh)
        shardings = state_shardings(abstract_params(config), config, devices)
    read = load_tokenizer(tokenizer)
    special = special_tokens(read, tokenizer)
    params = read_params(checkpoint, config, ema=weights == "ema", shardings=shardings)
    return JaxLanguageModel(
        params=params, config=config, tokenizer=read, special=special, ends=turn_end_ids(read, chats), mesh=devices
    )  # fmt: skip


def model_of_folder(folder: Path, *, mesh: Mesh | None = None) -> "JaxLanguageModel":
    """Open a folder of `transformers`. A written text ends at the tokenizer's end token and at the end tokens of `generate`."""
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

    params, config = read_folder(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).exists():
            raise CheckpointError(
                f"{folder} must hold {name} to be evaluated, and does not: download the folder again, or export it again."
            )
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    about = read_settings(folder / "tokenizer_config.json")
    texts = [token.get("content") if isinstance(token, dict) else token for token in map(about.get, ("bos_token", "eos_token"))]
    begin, end = (None if text is None else tokenizer.token_to_id(text) for text in texts)
    if end is None:
        raise CheckpointError(
            f"the tokenizer in {folder} must have an end token (eos_token), found {about.get('eos_token')}: it ends a text."
        )
    begins_texts = tokenizer.encode("a").ids[:1] == [begin] and tokenizer.encode("a", add_special_tokens=False).ids[:1] != [begin]
    # transformers reads the end tokens of generation_config.json, else of config.json
    written = next(path for name in ("generation_config.json", "config.json") if (path := folder / name).exists())
    found = read_settings(written).get("eos_token_id")
    ends = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(one, int) and 0 <= one < config.vocab_size for one in ends):
        raise CheckpointError(
            f"eos_token_id in {written} must be ids below the model's vocab_size of {config.vocab_size:,}, found {found}."
        )
    if mesh is not None:
        check_mesh(mesh, config)
    return JaxLanguageModel(
        params=params, config=config, tokenizer=tokenizer, special=SpecialTokens(begin, end), ends=ends,
        begins_texts=begins_texts, mesh=None if mesh is None else build_mesh(mesh),
    )  # fmt: skip


class Opened(NamedTuple):
    """A model for corpus fit. `weights` has `last` and, with a moving average, `ema`. `begin` is the BOS token."""

    checkpoint: Path
    config: ModelConfig
    weights: Mapping[str, Params]
    tokenizer: Tokenizer
    begin: int
    tokenizer_digest: str


def open_weights(checkpoint: Path, config: ModelConfig, tokenizer: Path, *, has_average: bool) -> Opened:
    """Open the weights of a checkpoint with the tokenizer of the training."""
    tokenizers_of_home.check_tokenizer(tokenizer)
    tokenizers_of_home.check_special_tokens(tokenizer, config.vocab_size)
    names = ("last", "ema") if has_average else ("last",)
    weights = {name: read_params(checkpoint, config, ema=name == "ema") for name in names}
    read = load_tokenizer(tokenizer)
    return Opened(checkpoint, config, weights, read, special_tokens(read, tokenizer).before, digest_of_file(tokenizer))


def open_folder(folder: Path, tokenizer: Path | None = None) -> Opened:
    """Open a Phasewise checkpoint, or a folder of `transformers`. A checkpoint outside a home needs its `tokenizer.json`."""
    if (folder / "config.json").exists():
        model = model_of_folder(folder)
        digest = digest_of_file(folder / "tokenizer.json")
        return Opened(folder, model.config, {"last": model.params}, model.tokenizer, model.prefix_token_id, digest)
    about = read_about(folder)
    config = ModelConfig.model_validate(about["run"]["model"])
    has_average = any(name.startswith("ema.") for name in about["leaves"])
    return open_weights(folder, config, find_tokenizer(folder, about["run"], tokenizer), has_average=has_average)


def find_tokenizer(checkpoint: Path, run: Mapping[str, Any], given: Path | None, home: Path | None = None) -> Path:
    """Find the tokenizer that the caches of a run name, or check the given tokenizer. `home` is a further home to search."""
    if given and not given.is_file():
        raise ConfigError(f"--tokenizer must name a tokenizer.json, found no file at {given}.")
    digests: set[str] = set()
    homes: set[Path] = set()
    for folder in run["caches"].values():
        for manifest, path in _manifests(folder, checkpoint, home):
            digests.add(manifest.tokenizer_digest)
            homes.add(path.parents[2])
    candidates = [given] if given else [path for one in sorted(homes) for path in sorted(one.glob("tokenizers/*/tokenizer.json"))]
    for path in candidates:
        if digest_of_file(path) in digests or (given and not digests):
            return path
    if given:
        named = name_some((digest[:12] for digest in sorted(digests)), 2)
        raise DataError(
            f"the tokenizer must be the one of the checkpoint's caches ({named}), found {digest_of_file(given)[:12]} in {given}: its ids "
            "would mean other text."
        )
    raise ConfigError(
        f"the tokenizer of {checkpoint} is not found next to its caches: name its tokenizer.json with --tokenizer, or its home with --home."
    )


def find_chats(checkpoint: Path, run: Mapping[str, Any], home: Path | None = None) -> tuple[ChatTemplate, ...]:
    """Find the chat templates of a checkpoint's training data in its caches. A log line names missing caches."""
    found = {name: next((manifest for manifest, _ in _manifests(folder, checkpoint, home)), None) for name, folder in run["caches"].items()}
    if gone := [name for name, manifest in found.items() if manifest is None]:
        say(
            f"{checkpoint}: the caches of {name_some(gone, 2)} are gone. If they were conversations, generated text does not stop at the "
            "end of a turn. Name their home with --home."
        )
    chats = (chat_of(manifest.source) for manifest in found.values() if manifest)
    return tuple(chat for chat in chats if chat is not None)


def _manifests(named: str, checkpoint: Path, home: Path | None) -> Iterator[tuple[Manifest, Path]]:
    """Yield the existing manifests of a cache: at the recorded path, in `home`, and in the current home of the checkpoint."""
    folder = Path(named)
    parents = checkpoint.resolve().parents
    homes = [home] if home else []
    if len(parents) > 4 and parents[3].name == "runs":
        homes.append(parents[4])
    for path in (folder, *(one / "tokens" / folder.parent.name / folder.name for one in homes)):
        with suppress(DataError):
            yield read_manifest(path), path


MAX_TOKENS, MAX_PASSAGES = 15, 5
BEFORE, AFTER = 24, 8  # shown tokens before and after the token of a passage


class Model(NamedTuple):
    """Weights and architecture. Both models of a comparison have the same tokenizer."""

    params: Params
    config: ModelConfig


def compare_tokens(
    models: tuple[Model, Model],
    tokenizer: Tokenizer,
    begin: int,
    texts: Iterable[TokenizedText],
    *,
    text_bytes: Mapping[str, int] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Score each text with both models, in rolling windows of each model's `seq_len`.

    Returns:
        `subsets`: bits per byte of both models, by size of the difference. `tokens`: vocabulary entries by their share of all differences,
        the last token of a text apart from the same token elsewhere. `passages`: the tokens with the largest single differences.

    Raises:
        DataError: no text. EvaluationError: a likelihood is not finite.
    """
    placed = tuple(model._replace(params=jax.device_put(model.params)) for model in models)
    entries = 2 * max(model.config.vocab_size for model in models)  # entry 2 · token, and 2 · token + 1 for the last token of a text
    counts, sums = np.zeros(entries, np.int64), np.zeros((2, entries))
    of_subset: dict[str, np.ndarray] = {}
    passages: list[tuple[float, int, dict[str, Any]]] = []
    number = 0
    for batch in batches_of(texts):
        scored: list[list[np.ndarray]] = []
        for model in placed:
            windows = [rolling_windows(text.tokens, model.config.seq_len, begin) for text in batch]
            scores = iter(score_windows(model.params, model.config, [window for of_text in windows for window in of_text]))
            found = [[next(scores).log_likelihoods for _ in of_text] for of_text in windows]
            scored.append([np.concatenate(parts).astype(np.float64) if parts else np.zeros(0) for parts in found])
        for text, ours, theirs in zip(batch, *scored, strict=True):
            if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
                raise EvaluationError(f"{text.where}: expected finite likelihoods of both models. The weights of one have diverged.")
            if not len(ours):
                continue
            entry = 2 * text.tokens.astype(np.int64)
            entry[-1] += 1
            np.add.at(counts, entry, 1)
            for side, values in enumerate((ours, theirs)):
                np.add.at(sums[side], entry, -values)
            totals = of_subset.setdefault(text.subset, np.zeros(4))
            totals += (-ours.sum(), -theirs.sum(), text.text_bytes, len(ours))
            at = int(np.argmax(np.abs(ours - theirs)))
            passage = {
                "subset": text.subset,
                "where": text.where,
                "before": tokenizer.decode(text.tokens[max(0, at - BEFORE) : at].tolist(), skip_special_tokens=False),
                "token": tokenizer.decode([int(text.tokens[at])], skip_special_tokens=False),
                "after": tokenizer.decode(text.tokens[at + 1 : at + 1 + AFTER].tolist(), skip_special_tokens=False),
                "nats": float(-ours[at]),
                "against_nats": float(-theirs[at]),
            }
            number += 1
            passages = heapq.nlargest(MAX_PASSAGES, [*passages, (abs(float(ours[at] - theirs[at])), -number, passage)])
    if not of_subset:
        raise DataError("a comparison of tokens needs at least one text, found none.")
    subsets: list[dict[str, Any]] = []
    for name, (ours, theirs, known_bytes, tokens) in of_subset.items():
        num_bytes = (text_bytes or {}).get(name, int(known_bytes))
        bits = {"bits_per_byte": ours / num_bytes / math.log(2), "against_bits_per_byte": theirs / num_bytes / math.log(2)}
        subsets.append({"name": name, "text_bytes": num_bytes, "tokens": int(tokens), **bits})
    subsets.sort(key=lambda row: -abs(row["bits_per_byte"] - row["against_bits_per_byte"]))
    differences = sums[0] - sums[1]
    order = np.argsort(-np.abs(differences), kind="stable")[:MAX_TOKENS]
    rows = [
        {
            "token": int(entry) // 2,
            "text": tokenizer.decode([int(entry) // 2], skip_special_tokens=False),
            "is_last": bool(entry % 2),
            "count": int(counts[entry]),
            "nats": float(sums[0, entry] / counts[entry]),
            "against_nats": float(sums[1, entry] / counts[entry]),
            "share": float(abs(differences[entry]) / np.abs(differences).sum()),
        }
        for entry in order
        if differences[entry]
    ]
    return {"subsets": subsets, "tokens": rows, "passages": [passage for _, _, passage in passages]}
