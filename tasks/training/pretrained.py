"""The source of a pretrained start: its files, its model, and its weights as a checkpoint in the home."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.tokenizer import DocumentTokens, read_document_tokens
from phasewise.tasks.data.tokenizer_training import TOKENIZER_NAME, names_folder, open_tokenizer
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import CheckpointError, ConfigError, DataError, TrainingError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import NotAsWritten, digest_of_file, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, read_result
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, is_committed
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.model.hugging_face_config import differences_from_source, read_model, read_settings

SOURCE_NAME, CONFIG_NAME, INDEX_NAME = "source.json", "config.json", "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
SMALL_FILES = (CONFIG_NAME, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
WEIGHTS = ("*.safetensors", INDEX_NAME)
MAX_SLUG = 40


class Pretrained(Frozen):
    """The weights of a Hugging Face model or of a trained phase in another home. The rest of the state is fresh.

    Attributes:
        pretrained: a folder starts with `/`, `./`, `../` or `~/`. Other names are looked up on the Hub. The folder of a phase is
            `HOME/runs/RECIPE-SCALE/PHASE`.
        revision: branch, tag or commit of a Hub model.
        new_rows: rows that the phase adds to the vocabulary.
        declares: `rope` states that the phase's RoPE is another one.
    """

    pretrained: str = Field(min_length=1)
    revision: str | None = None
    new_rows: int = Field(default=0, ge=0)
    declares: tuple[Literal["rope"], ...] = ()

    @model_validator(mode="after")
    def _has_revision_of_hub(self) -> "Pretrained":
        if self.revision is not None and names_folder(self.pretrained):
            raise ValueError(f"revision: only a model of the Hub has revisions, found the folder {self.pretrained}. Take it out")
        return self


def find_folder(name: str, revision: str | None, *, has_weights: bool = False) -> Path:
    """The folder of a source. Missing files of a Hub model are downloaded. Raises ConfigError if the folder or the download fails."""
    if names_folder(name):
        folder = Path(name).expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(f"a pretrained start names a folder or a model of the Hub, found no folder at {folder}.")
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if (folder / CONFIG_NAME).exists() and (not has_weights or all(path.exists() for path in _weight_files(folder))):
            return folder
    except (LocalEntryNotFoundError, CheckpointError):
        pass
    except HFValidationError as error:
        raise ConfigError(f"a pretrained start names a folder (./…) or a model of the Hub (owner/name), found {name!r}: {error}") from None
    patterns = [*SMALL_FILES, *(WEIGHTS if has_weights else ())]
    try:
        if has_weights:
            say(f"downloading the weights of {name}")
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        at = f" at {revision}" if revision else ""
        raise ConfigError(f"the model {name}{at} is not in the cache of the Hub, and cannot be downloaded: {reason}.") from None


def _weight_files(folder: Path) -> list[Path]:
    """The files of a source that decide its weights."""
    run = RunFolder(folder)
    if run.run_file.exists():
        result = read_result(folder)
        if result is None:
            raise CheckpointError(f"{folder} must be a trained phase, and has no result: train the phase first.")
        return [run.run_file, run.result, run.checkpoint(result["stop_step"]) / DIGESTS_NAME]
    if (folder / SINGLE_NAME).exists():
        return [folder / CONFIG_NAME, folder / SINGLE_NAME]
    if not (folder / INDEX_NAME).exists():
        raise CheckpointError(f"{folder} must hold {SINGLE_NAME} or {INDEX_NAME}, and has neither: only safetensors can be read.")
    names = read_settings(folder / INDEX_NAME).get("weight_map", {}).values()
    return [folder / name for name in (CONFIG_NAME, INDEX_NAME, *sorted(set(names)))]


def model_of(name: str, revision: str | None = None) -> ModelConfig:
    """The model of a source, by `config.json` or `run.json`. Raises ConfigError without a source, CheckpointError for an unknown model."""
    folder = find_folder(name, revision)
    run_file = RunFolder(folder).run_file
    if run_file.exists():
        return ModelConfig.model_validate(read_sealed(run_file)["model"])
    return read_model(folder)


def tokenizer_of(name: str, revision: str | None = None) -> tuple[str, int, DocumentTokens]:
    """The tokenizer of a source for a recipe: its name, its size, and the tokens around documents.

    The first token is `bos_token` if the tokenizer writes it before a text (not in GPT-2 and Qwen). Raises ConfigError if the source has no
    `tokenizer.json`, or no end token.
    """
    folder = find_folder(name, revision)
    if RunFolder(folder).run_file.exists():
        file = _tokenizer_of_phase(folder)
        return str(file), open_tokenizer(file).get_vocab_size(), read_document_tokens(file)
    file = folder / TOKENIZER_NAME
    if not file.exists():
        raise ConfigError(
            f"{name} must have a {TOKENIZER_NAME}, and has none. Write it with transformers: "
            f"AutoTokenizer.from_pretrained({name!r}).save_pretrained(FOLDER), and name that folder."
        )
    tokenizer, about = open_tokenizer(file), read_settings(folder / "tokenizer_config.json")
    begin, end = (found.get("content") if isinstance(found := about.get(kind), dict) else found for kind in ("bos_token", "eos_token"))
    writes_begin = begin is not None and (
        about.get("add_bos_token") is True or tokenizer.encode("a").ids[:1] == [tokenizer.token_to_id(begin)]
    )
    around = DocumentTokens(begin if writes_begin and begin != end else None, end)
    if around.end is None:
        raise ConfigError(f"the tokenizer of {name} must name its eos_token in tokenizer_config.json, and does not: add it.")
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    place = str(file.parent) if names_folder(name) else f"{name}@{revision}" if revision else name
    return place, size, around


def _tokenizer_of_phase(folder: Path) -> Path:
    run, home = read_sealed(RunFolder(folder).run_file), folder.parents[2]
    for cache in run["caches"].values():
        with suppress(DataError):
            wanted = read_manifest(home / "tokens" / Path(cache).parent.name / Path(cache).name).tokenizer_digest
            for path in home.glob(f"tokenizers/*/{TOKENIZER_NAME}"):
                if digest_of_file(path) == wanted:
                    return path
    raise ConfigError(f"the tokenizer of {folder} must be in its home {home}, and is not: name a folder with it in the recipe's tokenizer.")


def chat_template_of(name: str, revision: str | None = None) -> str:
    """The chat template of a source, as Jinja. Raises ConfigError if it has none."""
    folder = find_folder(name, revision)
    if (file := folder / "chat_template.jinja").exists():
        return file.read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    found = read_settings(path).get("chat_template") if path.exists() else None
    if not isinstance(found, str):
        raise ConfigError(f"{name} must have a chat template, and has none: name a file of your own, or a template of Phasewise.")
    return found


def check_model(start: Pretrained, model: ModelConfig, phase: str) -> None:
    """Raise ConfigError if the model of a phase does not fit the source of its start."""
    found = model_of(start.pretrained, start.revision)
    different = differences_from_source(found, model, new_rows=start.new_rows, declares=start.declares)
    if different:
        remedy = "Correct the model, or leave it out"
        if any(one.startswith("rope ") for one in different):
            remedy += '. A change of RoPE is stated by declares=("rope",) in the start'
        raise ConfigError(f"phase {phase} starts from the weights of {start.pretrained}, and {'; '.join(different)}. {remedy}.")
    if "rope" in start.declares and found.rope == model.rope:
        raise ConfigError(f"phase {phase} declares rope, and has the RoPE of {start.pretrained}: take it out of `declares`.")


def folder_of(start: Pretrained, model: ModelConfig, home: Home, run_name: str) -> Path:
    """The folder of an import in the home, with one checkpoint of step 0."""
    key = digest_of_json([start.pretrained, start.revision, start.new_rows, model.model_dump(mode="json", exclude={"seq_len"})])
    name = start.pretrained.rstrip("/").rpartition("/")[2].lower()
    slug = "".join(character if character.isalnum() else "-" for character in name).strip("-")[:MAX_SLUG]
    return home.run(run_name, f"pretrained-{slug}-{key[:8]}")


def read_import(folder: Path) -> dict[str, Any] | None:
    """The description of an import: source, commit, files and `params_digest`. None if it is missing, unfinished or was edited."""
    try:
        found = read_sealed(folder / SOURCE_NAME)
    except (OSError, NotAsWritten):
        return None
    return found if is_committed(RunFolder(folder).checkpoint(0)) else None


def start_checkpoint(start: Pretrained, model: ModelConfig, phase: str, home: Home, run_name: str) -> tuple[Path, str]:
    """The imported checkpoint of a start and its `params_digest`. Raises TrainingError if it is missing, or its source has changed."""
    folder = folder_of(start, model, home, run_name)
    found = read_import(folder)
    if found is None:
        raise TrainingError(f"phase {phase} starts from the weights of {start.pretrained}, which are not imported yet: run it first.")
    if changed := _changed_files(start, found["files"], KnownDigests(home)):
        raise TrainingError(f"{changed[0]} of {start.pretrained} changed after its import, from which phase {phase} starts: run it again.")
    return RunFolder(folder).checkpoint(0), found["params_digest"]


def source_as_run(run: RunConfig) -> tuple[RunConfig, dict[str, Any]]:
    """The weights at the start of a run, as a run with a result, for their evaluation with the run's benchmarks and held-out text."""
    assert run.start is not None
    checkpoint = Path(run.start.checkpoint)
    folder = checkpoint.parents[1]
    stability = run.stability.but(ema_decay=None)
    changed = {"phase": folder.name, "output": str(folder), "start": None, "loss_on": "all", "stability": stability, "evaluation": None}
    return run.model_copy(update=changed), {"params_digest": run.start.params_digest, "checkpoint": str(checkpoint)}


def _changed_files(start: Pretrained, files: Mapping[str, str], digests: KnownDigests) -> list[str]:
    """The changed files of a source. A source that is gone counts as unchanged: its import is in the home."""
    try:
        if names_folder(start.pretrained):
            source = find_folder(start.pretrained, None)
        else:
            from huggingface_hub import snapshot_download

            source = Path(snapshot_download(start.pretrained, revision=start.revision, local_files_only=True))
    except (ConfigError, FileNotFoundError):
        return []
    found = {str(path.relative_to(source)): f"sha256:{digests.sha256(path)}" for path in _weight_files(source)}
    digests.keep()
    return [name for name in {**files, **found} if files.get(name) != found.get(name)]


def import_weights(start: Pretrained, model: ModelConfig, phase: str, home: Home, run_name: str) -> bool:
    """Import the weights of a start unless they are current, and return whether it did. Raises ConfigError or CheckpointError."""
    try:
        start_checkpoint(start, model, phase, home, run_name)
        return False
    except TrainingError:
        pass
    from phasewise.trainer.checkpoints.shards import import_folder  # it imports JAX

    source = find_folder(start.pretrained, start.revision, has_weights=True)
    check_model(start, model, phase)
    say(f"{phase}: importing the weights of {start.pretrained}")
    folder, digests = folder_of(start, model, home, run_name), KnownDigests(home)
    files = {str(path.relative_to(source)): f"sha256:{digests.sha256(path)}" for path in _weight_files(source)}
    (folder / SOURCE_NAME).unlink(missing_ok=True)
    digest = import_folder(source, RunFolder(folder).checkpoint(0), model, new_rows=start.new_rows, declares=start.declares)
    if any(digests.sha256(source / name) != one.removeprefix("sha256:") for name, one in files.items()):
        raise CheckpointError(f"{source} changed while its weights were read. Run again when no process writes there.")
    commit = source.name if not names_folder(start.pretrained) else None  # the name of a snapshot in the Hub's cache
    about = {"source": start.pretrained, "revision": start.revision, "commit": commit, "new_rows": start.new_rows}
    write_sealed(folder / SOURCE_NAME, {**about, "files": files, "params_digest": digest})
    digests.keep()
    return True
