"""What is cached against what the sources, the settings and the code demand now, difference by difference."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phasewise.tasks.data.caches import ENCODER, LENGTH_BIAS, described, read_by
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import DECISIVE_SETTINGS, read_documents_manifest
from phasewise.tasks.data.filters import NORMALIZER
from phasewise.tasks.data.listing import selects
from phasewise.tasks.data.plan import CachePlan, ComponentPlan, DataPlan
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.tokenizer import check_tokenizer
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, Manifest, SourceFile, Split, read_manifest

DIGEST_THREADS = 8
NOTHING = "nothing"
PREPARE = "prepare the data again"
REMEDIES = {
    "pin": "correct the pin, or take it out",
    "damaged": "delete its folder and prepare the data again",
    "edited": "delete its folder and prepare the data again",
    "turned away": "take it away, or exclude it",
    "not collected": "prepare the data: `phasewise data prepare` collects it",
    "files gone": "put the files back, or correct the source",
    "unreadable": "repair or exclude what its quarantine file names, or raise max_bad_fraction",
    "without text": "look into its files, or raise max_empty_fraction",
}
"""What a difference says → what to do; for all others the data are to be prepared again."""
FOLLOWS = "tokenizer changed"  # of every component, where it is trained on the text of all: said last


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it should be; what is not there is named `nothing`."""

    what: str
    file: str
    expected: str
    found: str

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return next((remedy for words, remedy in REMEDIES.items() if words in self.what), PREPARE)

    def as_json(self) -> dict[str, str]:
        """In the shape of `phasewise data verify --json`."""
        return {**asdict(self), "remedy": self.remedy}

    def __str__(self) -> str:
        return f"{self.what}: {self.file} (expected {self.expected}, found {self.found}): {self.remedy}"


def verify_component(name: str, plan: DataPlan, home: Home) -> list[Difference]:
    """Every difference of a component's two caches, each named once. Every shard is read."""
    component = plan.components[name]
    found = [difference for split in SPLITS for difference in _verify_cache(component, split, plan.tokenizer, home)]
    known = read_documents_manifest(component.documents.folder).tally.bad_files if component.documents.is_built else {}
    found += [
        Difference("file turned away", file.name, "a file under the source's root", file.reason)
        for file in component.listing.rejected
        if file.name not in known
    ] + _unreadable(component)
    return sorted(dict.fromkeys(found), key=lambda difference: difference.what == FOLLOWS)


def differs_in_code_alone(component: ComponentPlan, manifest: Manifest) -> bool:
    """Whether a cache was made of the files and settings of now, by other versions of the code that reads and encodes."""
    now = component.source.model_dump(mode="json")
    then = manifest.source
    has_same_settings = all(now[name] == then.get(name) for name in DECISIVE_SETTINGS)
    has_same_settings &= described(component.bias_of(manifest.split)).get(LENGTH_BIAS) == then.get(LENGTH_BIAS)
    return has_same_settings and not _changed_files(component, manifest) and bool(_changed_code(manifest))


def check_caches(names: Iterable[str], plan: DataPlan, home: Home) -> None:
    """Refuse components whose caches are not what they must be.

    Raises:
        DataError: with the first three differences.
    """
    differences = [(name, difference) for name in names for difference in verify_component(name, plan, home)]
    differences.sort(key=lambda one: one[1].what == FOLLOWS)
    found = [f"{name}: {difference}" for name, difference in differences]
    if found:
        raise DataError(f"the token caches are not what is configured: {name_some(found, 3, '; ')}.")


def check_cache(folder: Path, digests: KnownDigests) -> None:
    """Refuse a cache with files that are not as they were written, as far as their sizes and times show it.

    Raises:
        DataError: with the first of them.
    """
    files = {name: digest for shard in read_manifest(folder).shards for name, digest in shard.files.items()}
    if changed := digests.changed(folder, files, folder / MANIFEST_NAME):
        raise DataError(f"{folder / changed[0]} was changed after it was written. Delete {folder} and prepare the data again.")


def _verify_cache(component: ComponentPlan, split: Split, tokenizer: Path, home: Home) -> list[Difference]:
    cache = component.cache(split)
    if not cache.is_built:
        return _why_not_built(component, split, tokenizer, home)
    try:
        manifest = read_manifest(cache.folder)
    except DataError as error:
        return [Difference("manifest edited", str(cache.folder / MANIFEST_NAME), "the manifest that was written", str(error))]
    found = _changed_pin(cache, manifest, component.name, split) + _changes(component, manifest, tokenizer)
    if manifest.key != cache.key and not found:
        found.append(Difference("settings changed", str(cache.folder), cache.key[:16], manifest.key[:16]))
    files = [file for shard in manifest.shards for file in shard.files.items()]
    with ThreadPoolExecutor(DIGEST_THREADS, thread_name_prefix="verify") as pool:
        digests = list(pool.map(lambda file: _digest_or_nothing(cache.folder / file[0]), files))
    return found + [
        Difference("shard damaged", str(cache.folder / name), expected[:16], actual[:16])
        for (name, expected), actual in zip(files, digests, strict=True)
        if actual != expected
    ]


def _why_not_built(component: ComponentPlan, split: Split, tokenizer: Path, home: Home) -> list[Difference]:
    """The cache that must be there is not: half built, pinned to nothing, or another is there, and the difference can be named."""
    cache = component.cache(split)
    found: list[Difference] = []
    if cache.pin:
        return [Difference("pinned cache missing", str(cache.folder), cache.pin.digest[:16], NOTHING)]
    if shards := [path for path in _files_in(cache.folder) if path.name.startswith("shard-")]:
        found.append(Difference("half-built cache", str(cache.folder), MANIFEST_NAME, f"{len(shards)} files without it"))
    if other := _latest_other(home, component.name, split):
        try:
            found += _changes(component, read_manifest(other), tokenizer)
        except DataError as error:
            found.append(Difference("manifest edited", str(other / MANIFEST_NAME), "the manifest that was written", str(error)))
    return found or [Difference(f"{split} cache not built", str(cache.folder), cache.key[:16], NOTHING)]


def _changed_pin(cache: CachePlan, manifest: Manifest, component: str, split: Split) -> list[Difference]:
    if cache.pin is None:
        return []
    expected = f"{split} cache of {component}"
    found = f"{manifest.split} cache of {manifest.component}"
    if expected != found:
        return [Difference("pinned to another cache", str(cache.folder), expected, found)]
    if cache.pin.digest != manifest.digest:
        return [Difference("pinned cache changed", str(cache.folder), cache.pin.digest[:16], manifest.digest[:16])]
    return []


def _changes(component: ComponentPlan, manifest: Manifest, tokenizer: Path) -> list[Difference]:
    place = f"caches of {component.name}"
    found = _changed_files(component, manifest)
    now = component.source.model_dump(mode="json")
    then = manifest.source
    for name in DECISIVE_SETTINGS:
        if now[name] != then.get(name):
            found.append(Difference(f"{name} changed", place, *_in_words(now[name], then.get(name))))
    wanted, was = described(component.bias_of(manifest.split)).get(LENGTH_BIAS), then.get(LENGTH_BIAS)
    if wanted != was:
        found.append(Difference(f"{LENGTH_BIAS} changed", place, str(wanted), str(was)))
    found += [Difference(what, place, expected, was) for what, expected, was in _changed_code(manifest)]
    expected = digest_of_file(tokenizer) if tokenizer.exists() else f"{tokenizer.parent.name}, not made yet"
    try:
        if tokenizer.exists():
            check_tokenizer(tokenizer)
    except DataError:
        found.append(Difference("tokenizer edited", str(tokenizer), "the file that was written", expected[:16]))
        return found
    if expected != manifest.tokenizer_digest:
        found.append(Difference(FOLLOWS, place, expected[:32], manifest.tokenizer_digest[:16]))
    return found


def _in_words(now: Any, then: Any) -> tuple[str, str]:
    if isinstance(now, dict) and isinstance(then, dict):
        differing = [name for name in {**now, **then} if now.get(name) != then.get(name)]
        now, then = ({name: one.get(name) for name in differing} for one in (now, then))
    return _shortened(now), _shortened(then)


def _shortened(value: Any) -> str:
    shown = {name: f"{digest_of_bytes(one.encode())[:16]} (digest)" if isinstance(one, str) and len(one) > 80 else one
             for name, one in value.items()} if isinstance(value, dict) else value  # fmt: skip
    return str(shown)


def _changed_code(manifest: Manifest) -> list[tuple[str, str, str]]:
    versions = (
        ("reader code changed", read_by(manifest.source), manifest.reader),
        ("normalizer code changed", NORMALIZER, manifest.normalizer),
        ("encoder code changed", ENCODER, manifest.encoder),
    )
    return [(what, now, then) for what, now, then in versions if now != then]


def _changed_files(component: ComponentPlan, manifest: Manifest) -> list[Difference]:
    current: dict[str, SourceFile] = {file.name: file for file in component.files}
    cached = {file.name: file for file in manifest.sources}
    found: list[Difference] = []
    for name in sorted({*current, *cached}):
        if name not in cached:
            found.append(Difference("file added", name, current[name].digest[:23], NOTHING))
        elif name not in current and not selects(component.source, name):
            found.append(Difference("file no longer selected", name, f"left out by {_filter(component.source)}", "in the cache"))
        elif name not in current:
            found.append(Difference("file removed", name, NOTHING, cached[name].digest[:23]))
        elif current[name].digest != cached[name].digest:
            found.append(Difference("content changed", name, current[name].digest[:23], cached[name].digest[:23]))
    return found


def _filter(source: Source) -> str:
    without = f" without {', '.join(source.exclude)}" if source.exclude else ""
    return f"{', '.join(source.include)}{without}"


def _unreadable(component: ComponentPlan) -> list[Difference]:
    """Documents that were built when more of a source was allowed to be unreadable, or without text, than is now."""
    folder = component.documents.folder
    if not component.documents.is_built:
        return []
    tally, source = read_documents_manifest(folder).tally, component.source
    found = (
        ("too much is unreadable", tally.bad_fraction, source.max_bad_fraction),
        ("too much is without text", tally.empty_fraction, source.max_empty_fraction),
    )
    return [Difference(what, str(folder), f"at most {limit:.4g}", f"{share:.4g}") for what, share, limit in found if share > limit]


def _latest_other(home: Home, component: str, split: Split) -> Path | None:
    found = list((home.root / "tokens" / component).glob(f"{split}-*/{MANIFEST_NAME}"))
    return max(found, key=lambda path: path.stat().st_mtime).parent if found else None


def _files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


def _digest_or_nothing(path: Path) -> str:
    try:
        return digest_of_file(path)
    except FileNotFoundError:
        return NOTHING
