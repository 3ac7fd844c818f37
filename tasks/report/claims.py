"""Claims of a card: digests of a phase's files and their results, from a home without recipe or network."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import pandas as pd
from pydantic import ValidationError

from phasewise.tasks.data.tokenizer_training import names_folder
from phasewise.tasks.evaluation.made_benchmarks import read_benchmark_folder
from phasewise.tasks.evaluation.settings import made_of
from phasewise.tasks.store.publisher import WORKED_ON
from phasewise.tasks.training.pretrained import SOURCE_NAME
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import CheckpointError, ConfigError, DataError, VerdictError
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_file, digest_of_json, unsealed
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, EVALUATION_NAME, METRICS_NAME, RESULT_NAME, RUN_NAME
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.config.run import without_added
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, Split, read_manifest
from phasewise.validations.verdict import Verdict, judged_by_gate

MAX_READ_BYTES = 64 * 2**30
SHOWN_CHARACTERS = 64
Gate = Literal["data", "health", "model"]
GATES: tuple[Gate, ...] = ("data", "health", "model")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a folder's name. A foreign card must not lead outside the home
SOURCE_DIGESTS = ("sha256", "md5")
STAMPS = "_CHECKPOINT_METADATA"
FOREIGN_PATH = re.compile(r"(?<![\w.])/(?:[^\s\"',/]+/)+[^\s\"',]*")


class Disagreement(NamedTuple):
    """A field of the card, and its difference to the bytes."""

    field: str
    words: str

    @property
    def line(self) -> str:
        """Line for people."""
        return f"{self.field}: {self.words}"


@dataclass
class HomeFiles:
    """The files of a home, each read once. `work` has a local copy of runs, verdicts and reports for a home on a store."""

    root: Path
    work: Path | None = field(default=None, kw_only=True)
    max_read_bytes: int = field(default=MAX_READ_BYTES, kw_only=True)
    digests: dict[str, str] = field(default_factory=dict[str, str])  # path in the home → SHA-256 of the read files
    problems: list[Disagreement] = field(default_factory=list[Disagreement])  # contradictions between files, by the field that they decide
    unread: list[Disagreement] = field(default_factory=list[Disagreement])  # unchecked files and fields
    read_bytes: int = 0  # for digests

    def place(self, path: str) -> Path:
        """Return the local file or folder of a path in the home."""
        return ((self.work or self.root) if path.split("/", 1)[0] in WORKED_ON else self.root) / path

    def json(self, field: str, path: str) -> Any:
        """Read a sealed JSON file, or a file of Orbax in a checkpoint. A missing or changed file is a problem of the field."""
        if not self.place(path).is_file():
            self.problem(field, f"the home has no {path}")
            return None
        content = self.place(path).read_bytes()
        self.digests[path] = digest_of_bytes(content)
        is_orbax = CHECKPOINTS_NAME in Path(path).parts
        return self.tried(
            field, lambda: unsealed(parse_json(content, allows_nan=True), path, may_lack_seal=is_orbax), NotAsWritten, ValueError
        )

    def check(self, field: str, path: str, expected: str | None = None) -> str | None:
        """Return the SHA-256 of a file. A missing file or an unexpected digest is a problem of the field."""
        place = self.place(path)
        if not place.is_file():
            self.problem(field, f"the home has no {path}")
            return expected
        if path not in self.digests:
            size = place.stat().st_size
            if expected is not None and self.read_bytes + size > self.max_read_bytes:
                self.unread.append(
                    Disagreement(field, f"{path} ({size:,} bytes) was not read: the bound of {self.max_read_bytes:,} bytes is reached")
                )
                return expected
            self.read_bytes += size
            self.digests[path] = digest_of_file(place)
        if expected is not None:
            self.agree(field, f"the bytes of {path} have", expected[:16], self.digests[path][:16])
        return self.digests[path]

    def agree(self, field: str, speaker: str, expected: Any, found: Any) -> None:
        """Note a problem of the field if two files disagree. `speaker` names the second file."""
        if expected != found:
            self.problem(field, f"the home says {shown(expected)}, {speaker} {shown(found)}")

    def problem(self, field: str, words: str) -> None:
        """Note a contradiction."""
        self.problems.append(Disagreement(field, words))

    def tried(self, field: str, read: Callable[[], Any], *errors: type[Exception]) -> Any:
        """Return the result of `read`. One of these errors is a problem of the field."""
        try:
            return read()
        except errors as error:
            self.problem(
                field, " ".join(str(error).split()).replace(str(self.root), "the home").replace(str(self.work or self.root), "the home")
            )
            return None


def shown(value: Any) -> str:
    """Format a value in one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def ruling_word(gate: Mapping[str, Any]) -> str:
    """Return the ruling on a verdict: passes, approved, waits, rejected or fails."""
    return str(gate.get("ruling") or ("passes" if gate["passes"] else "fails"))


class Subject(NamedTuple):
    """A phase. The digests of its evaluation prove `held_out_tokens`, the bound on held-out text."""

    recipe: str
    scale: str
    phase: str
    held_out_tokens: int | None

    @property
    def run_name(self) -> str:
        """Folder under `runs` and `verdicts`."""
        return f"{self.recipe}-{self.scale}"


class Trained(NamedTuple):
    """A phase's run, with folder and checkpoint as paths in the home."""

    run: RunConfig
    result: dict[str, Any]
    folder: str
    checkpoint: str


def read_claims(files: HomeFiles, subject: Subject, *, source_folders: Mapping[str, Path] | None = None) -> dict[str, Any]:
    """Read the claims, and note problems and unread files in `files`. A ConfigError reports an invalid name."""
    for name in (subject.recipe, subject.scale, subject.phase):
        if not NAME.fullmatch(name):
            raise ConfigError(f"recipe, scale and phase must be names of folders, found {name!r}.")
    claims: dict[str, Any] = {"recipe": subject.recipe, "scale": subject.scale, "phase": subject.phase}
    trained = read_trained(files, subject.run_name, subject.phase, "training")
    if trained is None:
        return claims
    run, result, folder, checkpoint = trained
    for name in ("phase", "recipe", "scale"):
        files.agree(name, "its run says", claims[name], getattr(run, name))
    about = files.json("order", f"{checkpoint}/about/metadata") or {}
    order = about.get("contract") if isinstance(about, dict) else None
    if not isinstance(order, dict):
        files.problem("order", "the checkpoint holds no data order contract")
        order = {}
    verdict_folder = f"verdicts/{subject.run_name}/{subject.phase}"
    verdicts: dict[Gate, Verdict] = {}
    for gate in GATES:
        content = files.json(f"gates.{gate}", f"{verdict_folder}/{gate}.json")
        if content is not None:
            verdict = files.tried(f"gates.{gate}.passes", partial(Verdict.model_validate, content), ValidationError)
            verdicts |= {gate: verdict} if verdict else {}
    data = _data(files, verdicts["data"].judged if "data" in verdicts else {}, order, source_folders or {})
    evaluation = files.json("evaluation", f"{folder}/{EVALUATION_NAME}")
    if "health" in verdicts and files.place(f"{folder}/{METRICS_NAME}").is_file():
        metrics = files.check("gates.health.judged", f"{folder}/{METRICS_NAME}")
        files.agree("gates.health.judged", "metrics.jsonl has", sorted(verdicts["health"].judged.values()), [metrics])
    if "model" in verdicts and evaluation is not None:
        parent = f"runs/{subject.run_name}/{_named_in(run.start.checkpoint)[0]}/{EVALUATION_NAME}" if run.start else None
        before = files.json("gates.model.judged", parent) if parent and files.place(parent).is_file() else None
        judged, found = verdicts["model"].judged, judged_by_gate(evaluation, before)
        for name in {**judged, **found}:
            files.agree(f"gates.model.judged.{name}", "the evaluations have", judged.get(name), found.get(name))
    lineage = _lineage(files, trained, subject.run_name)
    files.check("training.metrics", f"{folder}/{METRICS_NAME}")
    stamp = (files.json("training.finished", f"{checkpoint}/{STAMPS}") or {}).get("commit_timestamp_nsecs")
    finished = datetime.fromtimestamp(stamp // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(stamp, int) else None
    kept = ("params_digest", "tokens", *(["counted_tokens"] if "counted_tokens" in result else []), "final_loss")
    results = {name: result.get(name) for name in kept}  # counted_tokens are only the predicted tokens
    changes: list[dict[str, Any]] | None = None  # from the verdict on the data
    if (hand_off := files.place(f"{verdict_folder}/data/hand_off.parquet")).is_file():
        table = files.tried("hand_off", lambda: pd.read_parquet(hand_off), ValueError, OSError)
        names = ["name", "declared", "found", "before", "after"]
        changes = [] if table is None else json.loads(table[names].to_json(orient="records"))
    claims |= {
        "lineage": lineage,
        "training": {"settings": without_added(run.decisive), "run_digest": run.digest, **results, "finished": finished},
        "mixture": {"unit": "percent of sequences", "at_step": {str(step): dict(shares) for step, shares in run.mixture.root}},
        "order": {name: value for name, value in order.items() if name != "mixture"},
        "data": data,
        "tokenizer": _tokenizer(files, data),
        "hand_off": {} if changes is None else {"changes": {str(row.pop("name")): row for row in changes}},
        "gates": {gate: _gate(files, gate, f"{verdict_folder}/{gate}", verdict) for gate, verdict in verdicts.items()},
        **({"evaluation": _evaluation(files, trained, evaluation, subject.held_out_tokens)} if evaluation else {}),
        "checkpoint": _checkpoint(files, trained),
    }
    claims["digests"] = dict(sorted(files.digests.items()))
    plain = json.loads(json.dumps(claims, ensure_ascii=False))
    told = {name: plain[name] for name in ("gates", "hand_off")}  # messages may contain local paths
    return {**plain, **json.loads(FOREIGN_PATH.sub("<a place>", json.dumps(told, ensure_ascii=False)))}


def read_trained(files: HomeFiles, run_name: str, phase: str, field: str) -> Trained | None:
    """Read the run and its result, or return None for a missing or damaged file."""
    folder = f"runs/{run_name}/{phase}"
    written = files.json(f"{field}.settings", f"{folder}/{RUN_NAME}")
    result = files.json(field, f"{folder}/{RESULT_NAME}")
    run = None if written is None else files.tried(f"{field}.settings", lambda: RunConfig.model_validate(written), ValidationError)
    if run is None or not isinstance(result, dict):
        return None
    if result.get("run_digest") != run.digest:
        files.problem(f"{field}.run_digest", f"result.json says {str(result.get('run_digest'))[:16]}, run.json has {run.digest[:16]}")
    return Trained(run, result, folder, f"{folder}/{CHECKPOINTS_NAME}/{run.stop_step}")


def _lineage(files: HomeFiles, trained: Trained, run_name: str) -> list[dict[str, Any]]:
    """Return the ancestors in order and the phase, each with the weights for its child."""
    lineage: list[dict[str, Any]] = []
    current, left_at, params_digest = trained, trained.run.stop_step, trained.result.get("params_digest")
    while True:
        run, start = current.run, current.run.start
        entry: dict[str, Any] = {"phase": run.phase, "start_step": run.start_step, "stop_step": run.stop_step, "left_at_step": left_at}
        entry |= {"seed": run.seed, "start": None, "run_digest": run.digest, "params_digest": params_digest}
        lineage.insert(0, entry)
        if start is None:
            return lineage
        parent, step = _named_in(start.checkpoint)
        grafts = [(*_named_in(one.checkpoint), one.part) for one in start.graft]
        entry["start"] = {
            "parent": parent,
            "step": step,
            "params_digest": start.params_digest,
            "fresh": list(start.fresh),
            "graft": [{"phase": phase, "step": at, "part": part} for phase, at, part in grafts],
        }
        field = f"lineage.{parent}"
        if files.place(imported := f"runs/{run_name}/{parent}/{SOURCE_NAME}").is_file():
            source = files.json(field, imported) or {}
            files.agree(f"{field}.params_digest", f"{run.phase} started from", source.get("params_digest"), start.params_digest)
            entry["pretrained"] = {name: source.get(name) for name in ("source", "revision", "commit", "new_rows", "files")}
            if names_folder(named := str(source.get("source"))):
                entry["pretrained"]["source"] = Path(named).name  # no path of this machine
            return lineage
        found = read_trained(files, run_name, parent, field)
        if found is None:
            return lineage
        if step == found.run.stop_step:
            of_result = found.result.get("params_digest")
            files.agree(f"{field}.params_digest", f"{run.phase} started from", of_result, start.params_digest)
        else:
            files.unread.append(Disagreement(f"{field}.params_digest", f"the weights of its step {step}, before its end, were not read"))
        for phase, at, part in grafts:
            files.unread.append(Disagreement(f"lineage.{run.phase}.start.graft", f"the {part} in {phase}/{at} was not read"))
        current, left_at, params_digest = found, step, start.params_digest


def _named_in(checkpoint: str) -> tuple[str, int]:
    parts = PurePosixPath(checkpoint).parts  # …/PHASE/checkpoints/STEP
    return parts[-3], int(parts[-1])


def _checkpoint(files: HomeFiles, trained: Trained) -> dict[str, Any]:
    """Check the bytes of every file in the last checkpoint, and compare the weights with the result."""
    folder = trained.checkpoint
    named: dict[str, Any] = (files.json("checkpoint", f"{folder}/digests.json") or {}).get("files", {})
    for name in sorted(named):
        files.check(f"checkpoint.files.{name}", f"{folder}/{name}", str(named[name]["sha256"]))
    whole = files.place(folder)
    there = {path.relative_to(whole).as_posix(): path for path in whole.rglob("*") if path.is_file()}
    for name in sorted(set(there) - set(named) - {"digests.json"}):
        files.problem(f"checkpoint.files.{name}", "the checkpoint's digests.json does not name this file")
    if any(one.field.startswith("checkpoint") for one in (*files.problems, *files.unread)):
        files.unread.append(
            Disagreement("training.params_digest", "the weights were not read: the checkpoint's files are damaged or were not all read")
        )
    else:
        from phasewise.trainer.checkpoints.state import saved_params_digest  # it imports JAX

        found = files.tried("training.params_digest", lambda: saved_params_digest(whole), CheckpointError, ValueError, OSError)
        if found is not None:
            files.agree("training.params_digest", "the weights in the checkpoint have", trained.result.get("params_digest"), found)
    sizes = {name: {"size_bytes": there[name].stat().st_size, "sha256": named[name]["sha256"]} for name in sorted(named) if name in there}
    return {"step": trained.run.stop_step, "where": folder, "files": sizes}


def _data(files: HomeFiles, judged: Mapping[str, str], order: Mapping[str, Any], folders: Mapping[str, Path]) -> dict[str, Any]:
    """Return component → the cache that the verdict on the data judged and the data order contract names."""
    trained: Mapping[str, Any] = order.get("components", {})
    claims: dict[str, Any] = {}
    for name in sorted({*judged, *trained}):
        if name not in judged:
            files.problem(f"data.{name}", "the component trained, and the verdict on the data did not judge it")
            continue
        digest = judged[name]
        found = _find_cache(files, f"data.{name}", name, "train", lambda manifest, digest=digest: manifest.digest == digest)
        if found is None:
            files.problem(f"data.{name}.manifest_digest", f"no cache in the home has the manifest {digest[:16]} that was judged")
            continue
        where, manifest = found
        if name in trained:  # code changes may reproduce equal bytes
            kind, value = ("content", manifest.content) if "content" in trained[name] else ("manifest", manifest.digest)
            files.agree(f"order.components.{name}.{kind}", "the judged cache has", trained[name].get(kind), value)
        for source in manifest.sources:
            field = f"data.{name}.manifest.sources.{source.name}"
            place = folders.get(name, files.place(f"sources/{name}")) / source.name
            kind, _, said = source.digest.partition(":")
            if not place.is_file():
                files.unread.append(Disagreement(field, "its bytes are not in the home; --source NAME=FOLDER says where they are"))
            elif kind not in SOURCE_DIGESTS:
                files.unread.append(Disagreement(field, f"a digest of the kind {kind} was noted, which only its store can work out"))
            else:
                with place.open("rb") as file:
                    files.agree(field, "the file's bytes have", said, hashlib.file_digest(file, kind).hexdigest())
        digests = {"manifest_digest": manifest.digest, "content": manifest.content}
        claims[name] = {"manifest": manifest.as_written(), **digests, "where": where}
    return claims


def _find_cache(
    files: HomeFiles, field: str, component: str, split: Split, is_wanted: Callable[[Manifest], bool]
) -> tuple[str, Manifest] | None:
    """Find the wanted unedited cache of a component, and compare its shards with the manifest."""
    for path in sorted(files.place(f"tokens/{component}").glob(f"{split}-*/{MANIFEST_NAME}")):
        try:
            manifest = read_manifest(path.parent)
        except DataError:
            continue
        if manifest.component == component and is_wanted(manifest):
            where = f"tokens/{component}/{path.parent.name}"
            files.check(field, f"{where}/{MANIFEST_NAME}")
            for shard in manifest.shards:
                for kind, ending in (("digest", "bin"), ("index_digest", "parquet"), ("spans_digest", "spans")):
                    if (digest := getattr(shard, kind)) is not None:
                        files.check(f"{field}.manifest.shards.{shard.name}.{kind}", f"{where}/{shard.name}.{ending}", digest)
            return where, manifest
    return None


def _tokenizer(files: HomeFiles, data: Mapping[str, Any]) -> dict[str, Any]:
    digests = {cache["manifest"]["tokenizer_digest"] for cache in data.values()}
    if len(digests) != 1:
        files.problem("tokenizer.digest", f"the caches were made with {len(digests)} tokenizers")
        return {}
    (digest,) = digests
    for path in sorted(files.place("tokenizers").glob("*/tokenizer.json")):
        where = f"tokenizers/{path.parent.name}/{path.name}"
        if files.check("tokenizer.digest", where) == digest:
            return {"digest": digest, "where": where}
        del files.digests[where]
    files.problem("tokenizer.digest", f"no tokenizer in the home has the digest {digest[:16]} that the caches name")
    return {"digest": digest}


def _gate(files: HomeFiles, gate: Gate, folder: str, verdict: Verdict) -> dict[str, Any]:
    for name, digest in verdict.tables.items():
        files.check(f"gates.{gate}.evidence.{name}", f"{folder}/{name}.parquet", digest)
    if files.place(f"{folder}.decision.json").is_file():
        files.check(f"gates.{gate}.decision", f"{folder}.decision.json")
    said = verdict.model_dump(mode="json")
    ruling = files.tried(f"gates.{gate}.decision", lambda: ruling_at(files.place(f"{folder}.json")), VerdictError)
    decided = {}
    if ruling is not None and ruling.state not in ("passes", "fails"):
        decided = {"ruling": ruling.state, "decision": ruling.decision.model_dump(mode="json") if ruling.decision else None}
    return {
        "passes": verdict.passes,
        **decided,
        "suite": verdict.suite,
        "suite_version": verdict.suite_version,
        "limits": said["thresholds"],
        "judged": {name.rpartition("/")[2]: digest for name, digest in verdict.judged.items()},
        "decided_by": said["decided_by"],
        "accepts": said["accepts"],
        "checks": [{name: check[name] for name in ("name", "table", "asks", "severity", "outcome")} for check in said["checks"]],
    }


def _evaluation(files: HomeFiles, trained: Trained, evaluation: Mapping[str, Any], held_out_tokens: int | None) -> dict[str, Any]:
    files.agree("evaluation.params_digest", "the result has", evaluation.get("params_digest"), trained.result.get("params_digest"))
    said, field = str(evaluation["benchmarks_digest"]), "evaluation.benchmarks_digest"
    for path in sorted(files.place("benchmarks").glob(f"*/{MANIFEST_NAME}")):
        try:
            chosen = read_benchmark_folder(path.parent).only(made_of(evaluation["benchmarks"]))
        except DataError:
            continue
        if chosen.digest == said:
            for name in (MANIFEST_NAME, *(f"{one.name}.{kind}" for one in chosen.benchmarks for kind in ("jsonl", "yaml"))):
                if (path.parent / name).is_file():
                    files.check(field, f"benchmarks/{path.parent.name}/{name}")
            break
    else:
        files.problem(field, f"no whole benchmarks in the home have the digest {said[:16]} that was measured")
    held_out: dict[str, str] = {}
    for name, noted in sorted(evaluation["measured_on"].items()):
        field = f"evaluation.held_out.{name}"
        cache = _find_cache(files, field, name, "held_out", lambda one, noted=noted: digest_of_json([one.key, held_out_tokens]) == noted)
        if cache is None:
            files.problem(field, f"no held-out cache in the home gives {noted[:16]}, which the evaluation was measured on")
        else:
            held_out[name] = cache[1].digest
    kept = ("key", "weights", "params_digest", "benchmarks", "benchmarks_digest", "bits_per_byte", "macro_bits_per_byte", "finite")
    optional = ("ema_macro_bits_per_byte", "mean_macro_bits_per_byte", "mean_of_steps")
    return {
        **{name: evaluation[name] for name in kept},
        **{name: evaluation.get(name) for name in optional},
        "results": {
            one["benchmark"]: {name: value for name, value in one.items() if name not in ("benchmark", "answers")}
            for one in evaluation["results"]
        },
        "held_out_tokens": held_out_tokens,
        "held_out": held_out,
    }
