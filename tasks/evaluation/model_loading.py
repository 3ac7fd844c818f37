"""A checkpoint of ours, or a Hugging Face folder, opened to be measured: all of its weights, its tokenizer, and how a text begins."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tokenizers import Tokenizer

from phasewise.tasks.data.template import ChatTemplate, chat_of, turn_end_ids
from phasewise.tasks.data.tokenizer import (
    SpecialTokens,
    check_special_tokens,
    check_tokenizer,
    load_tokenizer,
    special_tokens,
    tokenizer_digest,
)
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import CheckpointError, ConfigError, DataError
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.state import read_about, read_params
from phasewise.trainer.config import Mesh, ModelConfig
from phasewise.trainer.data.manifest import Manifest, read_manifest
from phasewise.trainer.model.hugging_face import read_folder, read_settings
from phasewise.trainer.model.hugging_face_config import Computation
from phasewise.trainer.model.params import Params, abstract_params
from phasewise.trainer.sharding import build_mesh, check_mesh, state_shardings

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

Weights = Literal["last", "ema"]
IN_FLOAT32 = Computation()


def model_of_checkpoint(
    checkpoint: Path,
    tokenizer: Path,
    *,
    weights: Weights = "last",
    chats: Sequence[ChatTemplate] = (),
    mesh: Mesh | None = None,
    seed: int = 0,
) -> "JaxLanguageModel":
    """The last weights of a checkpoint, or their moving average. Each device reads its own part.

    Args:
        tokenizer: the `tokenizer.json` that the model was trained with.
        chats: the chat templates of the conversations that it was trained on: what ends an answer ends what is written, as in its export.
        mesh: of all devices there are; None is one device.

    Raises:
        CheckpointError: the checkpoint is not whole, or has no moving average.
        ConfigError: the mesh fits neither the devices nor the model.
        DataError: the tokenizer lacks the tokens that begin and end a document.
    """
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

    config = ModelConfig.model_validate(read_about(checkpoint)["run"]["model"])
    if mesh is not None:
        check_mesh(mesh, config)
    found = None if mesh is None else build_mesh(mesh)
    read = load_tokenizer(tokenizer)
    special = special_tokens(read, tokenizer)
    shardings = None if found is None else state_shardings(abstract_params(config), config, found)
    params = read_params(checkpoint, config, ema=weights == "ema", shardings=shardings)
    ends = turn_end_ids(read, chats)
    return JaxLanguageModel(params=params, config=config, tokenizer=read, special=special, ends=ends, seed=seed, mesh=found)


def model_of_folder(
    folder: Path,
    *,
    computation: Computation = IN_FLOAT32,
    mesh: Mesh | None = None,
    seed: int = 0,
) -> "JaxLanguageModel":
    """The model of a folder that `transformers` reads, ours or another's: its weights, its tokenizer, how this begins a text, and what
    ends one that it writes: the tokenizer's end token, and all that `generate` of transformers ends at.

    Raises:
        CheckpointError: the folder is not whole, its model is none that this decoder computes, or it has no end token.
        ConfigError: the mesh fits neither the devices nor the model.
    """
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

    params, config = read_folder(folder, computation=computation)
    # The tokenizer, the ids of its begin and end tokens, and whether it begins a text by itself. One without a begin token has the end
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).exists():
            raise CheckpointError(f"{folder} must hold {name} to be evaluated, and does not: fetch the folder whole, or export it again.")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    about = read_settings(folder / "tokenizer_config.json")
    begin, end = (_id_of(tokenizer, about.get(name)) for name in ("bos_token", "eos_token"))
    if end is None:
        raise CheckpointError(
            f"the tokenizer in {folder} must have an end token (eos_token), found {about.get('eos_token')}: it ends a text."
        )
    begins = tokenizer.encode("a").ids[:1] == [begin] and tokenizer.encode("a", add_special_tokens=False).ids[:1] != [begin]
    special = SpecialTokens(end if begin is None else begin, end)
    begins_texts = begins
    ends = _ends_of(folder, config.vocab_size)
    if mesh is not None:
        check_mesh(mesh, config)
    found = None if mesh is None else build_mesh(mesh)
    return JaxLanguageModel(
        params=params, config=config, tokenizer=tokenizer, special=special, ends=ends, begins_texts=begins_texts, seed=seed, mesh=found
    )


def _ends_of(folder: Path, vocab_size: int) -> list[int]:
    """The ids that `generation_config.json` ends a text at; without that file, `config.json`, as in transformers."""
    written = next(path for name in ("generation_config.json", "config.json") if (path := folder / name).exists())
    found = read_settings(written).get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(one, int) and 0 <= one < vocab_size for one in ids):
        raise CheckpointError(f"eos_token_id in {written} must be ids below the model's vocab_size of {vocab_size:,}, found {found}.")
    return ids


def _id_of(tokenizer: Tokenizer, token: Any) -> int | None:
    """The id of a special token, which is written as its text or as an object that has it."""
    text = token.get("content") if isinstance(token, dict) else token
    return None if text is None else tokenizer.token_to_id(text)


class Opened(NamedTuple):
    """What is measured.

    Attributes:
        weights: name → weights: `last`, and `ema` where there is a moving average.
        begin: the token that is given before a text.
        tokenizer_digest: of its file.
    """

    checkpoint: Path
    config: ModelConfig
    weights: Mapping[str, Params]
    tokenizer: Tokenizer
    begin: int
    tokenizer_digest: str


def open_weights(checkpoint: Path, config: ModelConfig, tokenizer: Path, *, has_average: bool) -> Opened:
    """The weights of a checkpoint of ours, with the tokenizer that they were trained with.

    Raises:
        CheckpointError: the checkpoint is not whole.
        DataError: the tokenizer was edited, lacks the tokens that begin and end a text, or has ids that the model does not.
    """
    check_tokenizer(tokenizer)
    check_special_tokens(tokenizer, config.vocab_size)
    names = ("last", "ema") if has_average else ("last",)
    weights = {name: read_params(checkpoint, config, ema=name == "ema") for name in names}
    read = load_tokenizer(tokenizer)
    return Opened(checkpoint, config, weights, read, special_tokens(read, tokenizer).begin, tokenizer_digest(tokenizer))


def open_folder(folder: Path, tokenizer: Path | None = None) -> Opened:
    """A folder with a checkpoint of ours, or with a model that `transformers` reads.

    Args:
        tokenizer: the `tokenizer.json` of a checkpoint whose home is not here.

    Raises:
        CheckpointError: the folder is neither, or not whole.
        ConfigError: a checkpoint's tokenizer is not found.
        DataError: the tokenizer that is given is another than that of the checkpoint's caches.
    """
    if (folder / "config.json").exists():
        model = model_of_folder(folder)
        digest = tokenizer_digest(folder / "tokenizer.json")
        return Opened(folder, model.config, {"last": model.params}, model.tokenizer, model.prefix_token_id, digest)
    about = read_about(folder)
    config = ModelConfig.model_validate(about["run"]["model"])
    has_average = any(name.startswith("ema.") for name in about["leaves"])
    return open_weights(folder, config, find_tokenizer(folder, about["run"], tokenizer), has_average=has_average)


def find_tokenizer(checkpoint: Path, run: Mapping[str, Any], given: Path | None, home: Path | None = None) -> Path:
    """The tokenizer whose digest the caches of a run name, in their home; or the one that is given.

    Args:
        home: where the caches are looked for as well; so are they in the home that the checkpoint is in now.

    Raises:
        ConfigError, DataError: as `open_folder`.
    """
    if given and not given.is_file():
        raise ConfigError(f"--tokenizer must name a tokenizer.json, found no file at {given}.")
    # The digests of tokenizers that a run's caches name, and the homes that these are in; nothing of caches that are gone
    elsewhere = [*([home] if home else []), *_home_around(checkpoint)]
    digests: set[str] = set()
    homes: set[Path] = set()
    for folder in run["caches"].values():
        for manifest, place in _manifests(folder, elsewhere):
            digests.add(manifest.tokenizer_digest)
            homes.add(place.parents[2])
    there = [given] if given else [path for home in sorted(homes) for path in sorted(home.glob("tokenizers/*/tokenizer.json"))]
    fitting = [path for path in there if tokenizer_digest(path) in digests or (given and not digests)]
    if fitting:
        return fitting[0]
    if given:
        named = name_some((digest[:12] for digest in sorted(digests)), 2)
        raise DataError(
            f"the tokenizer must be the one of the checkpoint's caches ({named}), found {tokenizer_digest(given)[:12]} in {given}: its ids "
            "would mean other text."
        )
    raise ConfigError(
        f"the tokenizer of {checkpoint} is not found beside its caches: name its tokenizer.json with --tokenizer, or its home with --home."
    )


def find_chats(checkpoint: Path, run: Mapping[str, Any], home: Path | None = None) -> tuple[ChatTemplate, ...]:
    """The chat templates of the conversations that a checkpoint was trained on, as its caches name them.

    Of a cache that is gone it is not known, which is said.

    Args:
        home: as for `find_tokenizer`.
    """
    elsewhere = [*([home] if home else []), *_home_around(checkpoint)]
    found = {name: next((manifest for manifest, _ in _manifests(folder, elsewhere)), None) for name, folder in run["caches"].items()}
    if gone := [name for name, manifest in found.items() if manifest is None]:
        say(
            f"{checkpoint}: the caches of {name_some(gone, 2)} are gone, so it is not known whether they were conversations: what the "
            "model writes does not end with an answer of theirs. Name their home with --home."
        )
    chats = (chat_of(manifest.source) for manifest in found.values() if manifest)
    return tuple(chat for chat in chats if chat is not None)


def _home_around(checkpoint: Path) -> list[Path]:
    """The home that a checkpoint is in, HOME/runs/RECIPE/PHASE/checkpoints/STEP: it may have been moved since the run."""
    parents = checkpoint.resolve().parents
    return [parents[4]] if len(parents) > 4 and parents[3].name == "runs" else []


def _manifests(named: str, elsewhere: Sequence[Path]) -> Iterator[tuple[Manifest, Path]]:
    """Those of a cache that are there, and where: in the folder that a run names, and at its place in other homes."""
    folder = Path(named)
    for place in (folder, *(home / "tokens" / folder.parent.name / folder.name for home in elsewhere)):
        with suppress(DataError):
            yield read_manifest(place), place
