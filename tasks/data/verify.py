"""Verification of caches: their differences from the current sources, settings and code."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phasewise.tasks.data.caches import ENCODER, LENGTH_BIAS, described, read_by
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import DECISIVE_SETTINGS, read_documents_manifest
from phasewise.tasks.data.filters import NORMALIZER
from phasewise.tasks.data.findings import Tally
from phasewise.tasks.data.listing import selects
from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.tokenizer import check_tokenizer
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.base.storage import read_yaml
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, Manifest, SourceFile, Split, read_manifest

DIGEST_THREADS = 8
NOTHING = "nothing"
PREPARE = "prepare the data again"
REMEDIES: Mapping[str, str] = read_yaml(Path(__file__).with_name("difference_remedies.yaml"))
"""Word of a difference → remedy. The remedy for other differences is `PREPARE`."""
FOLLOWS = "tokenizer changed"  # listed last, because the text of any component may change the tokenizer


@dataclass(frozen=True)
class Difference:
    """A difference between the expected and the found state. A missing value is `nothing`."""

    what: str
    file: str
    expected: str
    found: str

    @property
    def remedy(self) -> str:
        """The remedy for the user."""
        return next((remedy for words, remedy in REMEDIES.items() if words in self.what), PREPARE)

    def as_json(self) -> dict[str, str]:
        """The shape of `phasewise data verify --json`."""
        return {**asdict(self), "remedy": self.remedy}

    def __str__(self) -> str:
        return f"{self.what}: {self.file} (expected {self.expected}, found {self.found}): {self.remedy}"


def verify_component(name: str, plan: DataPlan, home: Home) -> list[Difference]:
    """Read both caches of a component completely and list every difference once."""
    component = plan.components[name]
    found = [difference for split in SPLITS for difference in _verify_cache(component, split, plan.tokenizer, home)]
    documents = component.documents
    tally = read_documents_manifest(documents.folder).tally if documents.is_built else Tally()
    found += [
        Difference("file turned away", file.name, "a file under the source's root", file.reason)
        for file in component.listing.rejected
        if file.name not in tally.bad_files
    ]
    limits = (  # the limits may be stricter than at the time of the build
        ("too much is unreadable", tally.bad_fraction, component.source.max_bad_fraction),
        ("too much is without text", tally.empty_fraction, component.source.max_empty_fraction),
    )
    found += [
        Difference(what, str(documents.folder), f"at most {limit:.4g}", f"{share:.4g}") for what, share, limit in limits if share > limit
    ]
    return sorted(dict.fromkeys(found), key=lambda difference: difference.what == FOLLOWS)


def differs_in_code_alone(component: ComponentPlan, manifest: Manifest) -> bool:
    """Whether a cache has the current files and settings, and other versions of the reading and encoding code."""
    now = component.source.model_dump(mode="json")
    then = manifest.source
    has_same_settings = all(now[name] == then.get(name) for name in DECISIVE_SETTINGS)
    has_same_settings &= described(component.bias_of(manifest.split)).get(LENGTH_BIAS) == then.get(LENGTH_BIAS)
    return has_same_settings and not _changed_files(component, manifest) and bool(_changed_code(manifest))


def check_caches(names: Iterable[str], plan: DataPlan, home: Home) -> None:
    """Verify the caches of components. Raises DataError with the first three differences."""
    differences = [(name, difference) for name in names for difference in verify_component(name, plan, home)]
    differences.sort(key=lambda one: one[1].what == FOLLOWS)
    if differences:
        found = [f"{name}: {difference}" for name, difference in differences]
        raise DataError(f"the token caches are not what is configured: {name_some(found, 3, '; ')}.")


def check_cache(folder: Path, digests: KnownDigests) -> None:
    """Check the files of a cache by their sizes and times. Raises DataError with the first changed file."""
    files = {name: digest for shard in read_manifest(folder).shards for name, digest in shard.files.items()}
    if changed := digests.changed(folder, files, folder / MANIFEST_NAME):
        raise DataError(f"{folder / changed[0]} was changed after it was written. Delete {folder} and prepare the data again.")


def _verify_cache(component: ComponentPlan, split: Split, tokenizer: Path, home: Home) -> list[Difference]:
    cache = component.cache(split)
    folder = cache.folder
    if not cache.is_built:
        if cache.pin:
            return [Difference("pinned cache missing", str(folder), cache.pin.digest[:16], NOTHING)]
        missing: list[Difference] = []
        if shards := [path for path in folder.iterdir() if path.name.startswith("shard-")] if folder.exists() else []:
            missing.append(Difference("half-built cache", str(folder), MANIFEST_NAME, f"{len(shards)} files without it"))
        if others := list((home.root / "tokens" / component.name).glob(f"{split}-*/{MANIFEST_NAME}")):
            latest = max(others, key=lambda path: path.stat().st_mtime)  # its differences are the reasons
            try:
                missing += _changes(component, read_manifest(latest.parent), tokenizer)
            except DataError as error:
                missing.append(Difference("manifest edited", str(latest), "the manifest that was written", str(error)))
        return missing or [Difference(f"{split} cache not built", str(folder), cache.key[:16], NOTHING)]

    try:
        manifest = read_manifest(folder)
    except DataError as error:
        return [Difference("manifest edited", str(folder / MANIFEST_NAME), "the manifest that was written", str(error))]
    found: list[Difference] = []
    if cache.pin is not None:
        expected, actual = f"{split} cache of {component.name}", f"{manifest.split} cache of {manifest.component}"
        if expected != actual:
            found.append(Difference("pinned to another cache", str(folder), expected, actual))
        elif cache.pin.digest != manifest.digest:
            found.append(Difference("pinned cache changed", str(folder), cache.pin.digest[:16], manifest.digest[:16]))
    found += _changes(component, manifest, tokenizer)
    if manifest.key != cache.key and not found:
        found.append(Difference("settings changed", str(folder), cache.key[:16], manifest.key[:16]))

    def digest_of(name: str) -> str:
        try:
            return digest_of_file(folder / name)
        except FileNotFoundError:
            return NOTHING

    files = {name: digest for shard in manifest.shards for name, digest in shard.files.items()}
    with ThreadPoolExecutor(DIGEST_THREADS, thread_name_prefix="verify") as pool:
        actual_digests = pool.map(digest_of, files)
        for (name, expected), actual in zip(files.items(), actual_digests, strict=True):
            if actual != expected:
                found.append(Difference("shard damaged", str(folder / name), expected[:16], actual[:16]))
    return found


def _changes(component: ComponentPlan, manifest: Manifest, tokenizer: Path) -> list[Difference]:
    place = f"caches of {component.name}"
    found = _changed_files(component, manifest)
    now = component.source.model_dump(mode="json")
    then = manifest.source
    for name in DECISIVE_SETTINGS:
        if now[name] != then.get(name):
            found.append(Difference(f"{name} changed", place, *_in_words(now[name], then.get(name))))
    bias, earlier_bias = described(component.bias_of(manifest.split)).get(LENGTH_BIAS), then.get(LENGTH_BIAS)
    if bias != earlier_bias:
        found.append(Difference(f"{LENGTH_BIAS} changed", place, str(bias), str(earlier_bias)))
    found += [Difference(what, place, expected, actual) for what, expected, actual in _changed_code(manifest)]
    if not tokenizer.exists():
        digest = f"{tokenizer.parent.name}, not made yet"
    else:
        digest = digest_of_file(tokenizer)
        try:
            check_tokenizer(tokenizer)
        except DataError:
            found.append(Difference("tokenizer edited", str(tokenizer), "the file that was written", digest[:16]))
            return found
    if digest != manifest.tokenizer_digest:
        found.append(Difference(FOLLOWS, place, digest[:32], manifest.tokenizer_digest[:16]))
    return found


def _in_words(now: Any, then: Any) -> tuple[str, str]:
    """Two settings, reduced to their differing fields. Long texts are shown by their digests."""
    if isinstance(now, dict) and isinstance(then, dict):
        differing = [name for name in {**now, **then} if now.get(name) != then.get(name)]
        now, then = ({name: one.get(name) for name in differing} for one in (now, then))
    shown: list[str] = []
    for value in (now, then):
        if isinstance(value, dict):
            value = {
                name: f"{digest_of_bytes(one.encode())[:16]} (digest)" if isinstance(one, str) and len(one) > 80 else one
                for name, one in value.items()
            }
        shown.append(str(value))
    return shown[0], shown[1]


def _changed_code(manifest: Manifest) -> list[tuple[str, str, str]]:
    versions = (
        ("reader code changed", read_by(manifest.source), manifest.reader),
        ("normalizer code changed", NORMALIZER, manifest.normalizer),
        ("encoder code changed", ENCODER, manifest.encoder),
    )
    return [(what, now, then) for what, now, then in versions if now != then]


def _changed_files(component: ComponentPlan, manifest: Manifest) -> list[Difference]:
    source = component.source
    current: dict[str, SourceFile] = {file.name: file for file in component.listing.files}
    cached = {file.name: file for file in manifest.sources}
    found: list[Difference] = []
    for name in sorted({*current, *cached}):
        if name not in cached:
            found.append(Difference("file added", name, current[name].digest[:23], NOTHING))
        elif name not in current and not selects(source, name):
            globs = ", ".join(source.include) + (f" without {', '.join(source.exclude)}" if source.exclude else "")
            found.append(Difference("file no longer selected", name, f"left out by {globs}", "in the cache"))
        elif name not in current:
            found.append(Difference("file removed", name, NOTHING, cached[name].digest[:23]))
        elif current[name].digest != cached[name].digest:
            found.append(Difference("content changed", name, current[name].digest[:23], cached[name].digest[:23]))
    return found
