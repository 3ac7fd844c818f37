import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from phasewise.flows.cli.publish import export_target
from phasewise.flows.cli.status import describe, is_done
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.phase_status import parent_evaluation, read_record, read_records
from phasewise.flows.status.recipe_status import seal_report
from phasewise.flows.status.summary import build_report
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import check_once, split_texts
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.data.verify import check_caches
from phasewise.tasks.evaluation.made_benchmarks import benchmark_items
from phasewise.tasks.evaluation.ngram_baselines import measure_baselines
from phasewise.tasks.evaluation.phase_evaluation import finished_evaluation, request_evaluation
from phasewise.tasks.evaluation.suite import kept_path
from phasewise.tasks.home import Home
from phasewise.tasks.report.card import CardOptions, write_card
from phasewise.tasks.report.claims import Subject
from phasewise.tasks.report.html import build_data_docs, write_report
from phasewise.tasks.report.placing import export_name, is_placed, place
from phasewise.tasks.validation.judge import judge_phase_health, scan_caches
from phasewise.tasks.validation.scan_pieces import open_index
from phasewise.trainer.base.decision import Decision, Decisions, decision_path, seen_of
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.identity import SEAL, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, read_result
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.process.compilation_cache import drop_changed
from phasewise.trainer.run import check_verdict
from phasewise.trainer.skipped_steps import NOTHING, write_skipped_steps
from phasewise.validations.limits import accepted_in
from phasewise.validations.verdict import judge_gate, write_verdict
from tests.tasks.report.card.world import HELD_OUT_TOKENS

EDITS = ("flipped", "emptied", "cut", "another", "removed")


class Sealed(NamedTuple):
    recipe: Path
    home: Home

    def resolved(self) -> Resolved:
        return resolve(str(self.recipe), "proxy", str(self.home.root))[0]

    def files(self) -> list[str]:
        return sorted(path.relative_to(self.home.root).as_posix() for path in self.home.root.rglob("*") if path.is_file())


def write_sealed_home(recipe: Path, root: Path) -> Sealed:
    home = Home.open(str(root))
    found = Sealed(recipe, home)
    resolved = found.resolved()
    run_name = resolved.recipe.run_name
    for phase in resolved.recipe.phases:
        run = resolved.run(phase)
        folder = RunFolder(run.output)
        accepts = accepted_in(phase.name, resolved.recipe.accepts)
        judge_phase_health(run, phase.gates.health, home, accepts=accepts)
        evaluation, parent = read_sealed(folder.evaluation), parent_evaluation(resolved, phase)
        path = home.verdict(run_name, phase.name, "model")
        subject = f"{resolved.recipe.name}/{resolved.recipe.scale}/{phase.name} model"
        judged: Any = {"parent_evaluation": parent, "limits": phase.gates.model, "folder": path.with_suffix(""), "accepts": accepts}
        write_verdict(path, judge_gate(subject, evaluation, **judged))
        seen = seen_of(read_sealed(path))
        decided = Decision(approves=True, reason="chance", who=f"Ada of {phase.name}", when="2026-11-25T00:00:00+00:00", seen=seen)
        write_sealed(decision_path(path), Decisions(latest=decided).model_dump(mode="json"))
        write_skipped_steps(folder.path, NOTHING, [f"none in {phase.name}"])
        weights = str((read_result(folder.path) or {})["params_digest"])
        write_sealed(kept_path(folder.checkpoint(phase.stop_step), "reading", weights[:12], None), {"weights": weights, "benchmarks": {}})
        made = root.parent / "made" / phase.name
        exported = export_target(f"{recipe}/{phase.name}", str(made), "proxy", str(home.root), weights="last", dtype="float32")
        name = f"{export_name(phase.name, 'last', 'float32')}{exported['params_digest'][:12]}"
        place(made, home.root / "exports" / run_name / name)
    for number in (1, 2):
        key = str(number) * 64
        write_sealed(home.keyed("preflight", key).with_suffix(".json"), {"key": key, "result": number})
    measure_baselines(resolved.plan, home, resolved.recipe.phases[0].evaluation.held_out_tokens)
    records = read_records(resolved)
    report = home.report(run_name)
    build_data_docs(report / "data-docs", [verdict for record in records for verdict in record.verdicts])
    write_report(report / "report.html", build_report(resolved, records))
    seal_report(resolved, records)
    resolved.digests.keep()
    return found


@contextmanager
def edited(path: Path, edit: str, times: str, other: bytes) -> Iterator[None]:
    """The file, edited; as it was when the context ends, but for the time of change that nobody can set."""
    before, content = path.stat(), path.read_bytes()
    try:
        if edit == "removed":
            path.unlink()
        else:
            contents = {
                "unsealed": other,
                "flipped": flipped(content),
                "emptied": b"",
                "cut": content[: len(content) // 2],
                "another": other,
            }
            path.write_bytes(contents[edit])
        if times == "kept" and path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def another(path: Path) -> bytes | None:
    """A valid file of another home in the place of one that has no like in its own; None where nothing is known of such a one."""
    content = path.read_bytes()
    if path.suffix == ".html" or path.name.startswith("tokenizer."):
        return flipped(content)
    if path.name not in ("items.json", "baselines.json", "keys.json"):
        return None
    fields = read_sealed(path)
    fields |= {"key": "0" * 64} if "key" in fields else {"phases": {}, "files": {}}
    return json.dumps({**fields, SEAL: digest_of_json(fields)}).encode()


def flipped(content: bytes) -> bytes:
    """One bit is another: of text the lowest of a digit, so that it may still read."""
    if not content:
        return b"\0"
    digits = [at for at, byte in enumerate(content) if byte in b"0123456789"] if content.isascii() else []
    for at in [*digits[len(digits) // 2 :], len(content) // 2]:
        found = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with suppress(ValueError):
            if json.loads(found) == json.loads(content):
                continue  # the last digits of a number may change nothing of its value
        return found
    raise AssertionError("every digit is without a value")


PHASE = "ocelot"
KINDS = {
    "documents": ("manifest.json", "part-*.parquet", "part-*.digests", "copies.bin", "bundle-*.json"),
    "tokenizers": ("tokenizer.json", "tokenizer.sha256"),
    "tokens": ("manifest.json", "shard-*.bin", "shard-*.parquet", "shard-*.json"),
    "benchmarks": ("manifest.json", "*.jsonl", "*.yaml"),
    "evidence": ("items.json", "scan.json", "baselines.json", "index.json", "*.npy"),
    "verdicts": ("data.json", "health.json", "model.json", "model.decision.json", "data/*.parquet", "health/*.parquet", "model/*.parquet"),
    "runs": (
        "run.json", "caches.json", "conditions.json", "passed_over.json", "result.json", "evaluation.json", "metrics.jsonl",
        "evaluations/*.json", "checkpoints/*/digests.json", "checkpoints/*", "programs.json", "*-cache",
    ),
    "reports": ("keys.json", "report.html", "data-docs/*"),
    "exports": ("phasewise.json", "*"),
    "preflight": ("*.json",),
}  # fmt: skip
"""Folder of the home → the kinds of files below it that are checked; a file is of the first kind that it fits."""
CELLS = [(folder, name) for folder, names in KINDS.items() for name in names]
REMOVABLE = {
    ("evidence", "items.json"): "kept to save work: made again when it is asked for",
    ("evidence", "scan.json"): "kept to save work: made again when it is asked for",
    ("runs", "conditions.json"): "an earlier run has none: then nothing is said of it",
    ("runs", "caches.json"): "an earlier run has none: then the manifests of its caches are asked",
    ("runs", "passed_over.json"): "only a run that rolled back has one, and each checkpoint names what it passed over",
    ("runs", "evaluations/*.json"): "a suite that was not measured has none",
    ("runs", "programs.json"): "compiled programs that are not listed are compiled again",
    ("verdicts", "model.decision.json"): "a verdict without a decision waits for one",
    ("documents", "bundle-*.json"): "not read once the documents are finished",
    ("tokens", "shard-*.json"): "not read once the cache is finished",
    ("preflight", "*.json"): "compiled again",
}
"""Kind → why `status` need not miss a file of it."""
SAME = {
    ("runs", "conditions.json"): "both phases were computed on this machine: the two files are equal",
    ("runs", "passed_over.json"): "it names no run; a checkpoint compares the updates that it names with its own",
    ("runs", "evaluations/*.json"): "each result in it names its weights: that of others is not used",
    ("verdicts", "model.decision.json"): "it names what was seen of the verdict: that of another is void",
    ("documents", "bundle-*.json"): "not read once the documents are finished",
    ("tokens", "shard-*.json"): "not read once the cache is finished",
}
"""Kind → why `status` need not name another valid file in its place."""


@pytest.fixture(scope="module")
def sealed(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    recipe, home = trained
    return write_sealed_home(recipe, Path(shutil.copytree(home, tmp_path_factory.mktemp("sealed") / "home")))


@pytest.fixture(scope="module")
def untouched(sealed: Sealed, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return {name: use(sealed, tmp_path_factory.mktemp("untouched")) for name, use in USES.items()}


HARMLESS: Mapping[str, str] = {
    "runs/*/row-losses/*": "losses of rows, which `why` alone reads: no verdict and no status depends on them",
    "digests.json": "a cache of digests: a changed digest is checked again, and --full does not read the file",
    "documents/*/*/quarantine.jsonl": "samples of unreadable documents for people: the counts are in the manifest",
    "sources/*": "input: its content is its identity",
    "runs/*/*/events.jsonl": "a log for people: no decision depends on it",
    "runs/*/*/spent.jsonl": "a log of times: no decision depends on it",
    "stages/*/*.jsonl": "a log of times: no decision depends on it",
    "runs/*/*/life.json": "the times of a running trainer",
    "runs/*/*/*.log": "a log for people",
    "runs/*/*/heartbeat": "the heartbeat of a running trainer",
    "runs/*/*/token.json": "numbers the trainers of a folder: only the running trainer compares it",
    "runs/*/*/roll-call/*": "the heartbeats of running hosts",
    **dict.fromkeys(("runs/*/*/tensorboard/*", "runs/*/*/wandb/*"), "a copy of the metrics for people"),
    "prefect/*": "Prefect's rows are a view: no result depends on them",
    **dict.fromkeys(("lock", "locks/*", "*/lock", "*.lock", "*/lock.*"), "a lock"),
}
"""Pattern of paths in a home → the reason why a change of such a file does no harm."""


def why_harmless(path: str) -> str | None:
    return next((why for pattern, why in HARMLESS.items() if fnmatch(path, pattern)), None)


def kind_of(path: str) -> tuple[str, str] | None:
    folder, _, rest = path.partition("/")
    return next(((folder, name) for name in KINDS.get(folder, ()) if fnmatch(f"/{rest}", f"*/{name}")), None)


def files_of(sealed: Sealed, kind: tuple[str, str]) -> list[Path]:
    found = [path for path in sealed.files() if not why_harmless(path) and kind_of(path) == kind]
    return [sealed.home.root / path for path in sorted(found, key=lambda path: (PHASE not in path, "/52/" not in path))]


def target_of(sealed: Sealed, kind: tuple[str, str], edit: str) -> tuple[Path, bytes]:
    files = files_of(sealed, kind)
    content = files[0].read_bytes()
    other = next((found for path in files[1:] if (found := path.read_bytes()) != content), another(files[0]))
    if (edit == "another" and other is None) or (edit in ("emptied", "cut") and not content):
        pytest.skip("the home has no other file of this kind, or the file is empty")
    return files[0], other or b""


def said(sealed: Sealed, *, full: bool) -> tuple[bool, str]:
    description = describe(str(sealed.recipe), "proxy", str(sealed.home.root), reads_all=full)
    return is_done(description), json.dumps(description)


def test_every_file_of_a_home_is_of_a_kind_that_is_checked_or_harmless_for_a_reason(sealed: Sealed):
    unknown = [path for path in sealed.files() if kind_of(path) is None and why_harmless(path) is None]
    assert not unknown, "let tasks/inventory.py find a change and add the kind to this table, or add it to HARMLESS with a reason"
    missing = [kind for kind in CELLS if not files_of(sealed, kind)]
    assert not missing, "no file of the home is of these kinds"


@pytest.mark.parametrize("full", [False, True])
def test_status_of_an_untouched_home_is_done(sealed: Sealed, full: bool):
    assert said(sealed, full=full)[0], said(sealed, full=full)[1]


def test_status_names_a_file_without_its_seal(sealed: Sealed):
    """A digit is another one, and the seal that would show it is gone."""
    unnoticed: list[str] = []
    sealed_kinds = 0
    for path in (files_of(sealed, kind)[0] for kind in CELLS):
        with suppress(ValueError):
            content = json.loads(path.read_bytes())
            if isinstance(content, dict) and SEAL in content:
                sealed_kinds += 1
                with edited(path, "unsealed", "kept", flipped(json.dumps({**content, SEAL: ""}).replace(f', "{SEAL}": ""', "").encode())):
                    done, words = said(sealed, full=False)
                unnoticed += [path.name] if done or path.name not in words else []
    assert (unnoticed, sealed_kinds > 12) == ([], True)


def edits(first: int) -> list[Any]:
    """Each kind of file with each edit; one edit of a kind is quick, and the next kind has the next edit."""
    return [
        pytest.param(kind, edit, id="/".join((*kind, edit)), marks=() if (first + number - place) % len(EDITS) == 0 else pytest.mark.long)
        for number, kind in enumerate(CELLS)
        for place, edit in enumerate(EDITS)
    ]


@pytest.mark.parametrize("times", [pytest.param("new", marks=pytest.mark.long), "kept"])
@pytest.mark.parametrize(("kind", "edit"), edits(2))
def test_status_names_the_file(sealed: Sealed, kind: tuple[str, str], edit: str, times: str):
    path, other = target_of(sealed, kind, edit)
    harmless = {"removed": REMOVABLE, "another": SAME}.get(edit, {}).get(kind)
    with edited(path, edit, times, other):
        for full in (False, True):
            done, words = said(sealed, full=full)
            assert harmless or (not done and (path.name in words or edit == "removed")), words


def records_of(sealed: Sealed, _: Path) -> dict[str, Any]:
    parts = ("data_verdict", "health_verdict", "result", "evaluation", "model_verdict")
    records = read_records(sealed.resolved())
    return {f"{record.phase.name} {part}": getattr(record, part) for record in records for part in parts}


def inputs_of(sealed: Sealed, place: Path) -> dict[str, Any]:
    resolved = sealed.resolved()
    plan, phase = resolved.plan, resolved.recipe.phase(PHASE)
    caches = {name: plan.components[name].train.folder for name in phase.components}
    exports = resolved.home.root / "exports" / resolved.recipe.run_name
    for kept_by_process in (open_index, check_once):
        kept_by_process.cache_clear()
    reads: dict[str, Callable[[], Any]] = {
        "documents": lambda: {name: list(split_texts(one.documents.folder, "train")) for name, one in plan.components.items()},
        "tokenizer": lambda: load_tokenizer(plan.tokenizer).to_str(),
        "caches": lambda: [check_caches([name], plan, resolved.home) for name in plan.components],
        "benchmarks": lambda: benchmark_items(plan.benchmarks),
        "scans": lambda: scan_caches(caches, plan, phase.gates.data.leakage, resolved.home).scans,
        "exports": lambda: all(is_placed(folder, KnownDigests()) for folder in exports.iterdir()) or None,
        "programs": lambda: _kept_programs(sealed, place),
        "baselines": lambda: measure_baselines(plan, resolved.home, HELD_OUT_TOKENS),
        "permission": lambda: check_verdict(resolved.run(phase)),
    }
    return {name: _or_refused(read) for name, read in reads.items()}


def _kept_programs(sealed: Sealed, place: Path) -> bool | None:
    before = next(sealed.home.runs.glob("*/compilation-cache"))
    after = Path(shutil.copytree(before, place / "programs"))
    drop_changed(after)
    left = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in after.glob("*-cache")}
    return not left or left.items() <= read_json(before / "programs.json").items()


def evaluation_of(sealed: Sealed, _: Path) -> Any:
    resolved = sealed.resolved()
    record = read_record(resolved, resolved.recipe.phase(PHASE))
    if record.run is None or record.result is None:
        return None
    asked = request_evaluation(record.run, record.result, resolved.plan, record.phase.evaluation.measured)
    return finished_evaluation(record.run, asked.key)


def export_of(sealed: Sealed, folder: Path) -> dict[str, Any]:
    export_target(f"{sealed.recipe}/{PHASE}", str(folder / "out"), "proxy", str(sealed.home.root), weights="last", dtype="float32")
    about = {"README.md", "phasewise.json"}  # the page leaves out each part of which the home contradicts itself
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "out").iterdir() if path.name not in about}
    return files | {"figures": set(re.findall(r"\d+\.\d+", (folder / "out" / "README.md").read_text()))}


def card_of(sealed: Sealed, folder: Path) -> Any:
    write_card(sealed.home.root, Subject("tiny", "proxy", PHASE, HELD_OUT_TOKENS), folder / "card", CardOptions())
    return json.loads((folder / "card" / "statement.json").read_bytes())["predicate"]


USES: dict[str, Callable[[Sealed, Path], Any]] = {
    "run": records_of, "run again": inputs_of, "evaluate": evaluation_of, "export": export_of, "card": card_of,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "edit"), edits(0))
def test_nothing_uses_a_changed_file(sealed: Sealed, untouched: Mapping[str, Any], kind: tuple[str, str], edit: str, tmp_path: Path):
    if kind == ("verdicts", "model.decision.json") and edit in ("removed", "another"):
        pytest.skip("a verdict that passes takes no notice of decisions; a card names the file that lies there")
    path, other = target_of(sealed, kind, edit)
    with edited(path, edit, "kept", other):
        for command, use in USES.items():
            (tmp_path / command).mkdir()
            found = _or_refused(lambda use=use, command=command: use(sealed, tmp_path / command))
            wrong = list(_others(untouched[command], found, path, command))
            assert not wrong, wrong


def _or_refused(use: Callable[[], Any]) -> Any:
    try:
        return use()
    except PhasewiseError as error:
        return error


def _others(before: Any, found: Any, path: Path, where: str) -> Iterator[str]:
    """What is neither as before, nor missing, nor refused by the name of the file or of its folder."""
    if found is None:
        return
    if isinstance(found, PhasewiseError):
        if where != "card" and path.name not in str(found) and path.parent.name not in str(found):  # a card names its own field
            yield f"{where}: refused, and the file is not named: {found}"
    elif isinstance(before, dict) and isinstance(found, dict) and where in ("run", "run again", "export"):
        for name in before:
            yield from _others(before[name], found.get(name), path, f"{where}: {name}")
    elif isinstance(found, set):
        yield from (f"{where}: {figure} is of nothing that was there" for figure in cast("set[Any]", found) - set(before))
    elif found != before:
        yield f"{where}: {found!r:.400} instead of {before!r:.400}"
