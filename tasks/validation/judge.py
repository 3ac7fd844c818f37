"""Evidence and verdicts on a phase's data and on its training."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from phasewise.tasks.data.near_copies import read_near_copies
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.verify import check_caches, verify_component
from phasewise.tasks.evaluation.settings import OwnBenchmark
from phasewise.tasks.home import Home
from phasewise.tasks.validation.scan_caches import scan_caches, scan_key
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import Manifest, read_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import ComponentRows, DrawnRows, RowRule
from phasewise.trainer.metrics import read_metrics
from phasewise.validations.evidence.caches import NearCount, cache_evidence, differences_evidence
from phasewise.validations.evidence.health.evidence import health_evidence
from phasewise.validations.evidence.leakage.scan import leakage_evidence, leaked_items
from phasewise.validations.evidence.mixture import mixture_evidence, packing_evidence
from phasewise.validations.evidence.order.evidence import order_evidence
from phasewise.validations.expectations.suites import HEALTH_SUITE
from phasewise.validations.limits import DataLimits, HealthLimits
from phasewise.validations.verdict import DataEvidence, Verdict, judge_data, judge_suite, write_verdict
from phasewise.validations.waivers import NOBODY, AcceptedWarning, AsksPeople

DAMAGED = "shard damaged"


def judge_phase_data(
    run: RunConfig,
    plan: DataPlan,
    limits: DataLimits,
    home: Home,
    *,
    hand_off: pd.DataFrame,
    rows_before: Mapping[str, Sequence[DrawnRows]] = MappingProxyType({}),
    own: Sequence[OwnBenchmark] = (),
    decided_by: Mapping[str, str] = MappingProxyType({}),
    accepts: Sequence[AcceptedWarning] = (),
    asks_people: AsksPeople = NOBODY,
) -> Verdict:
    """Judge the caches, the mixture, the order, the leakage and the hand-off of a phase, and write the verdict for the trainer.

    `hand_off`: declared and found changes between parent and phase. `rows_before`: component → rows of earlier phases.
    `own`: own benchmarks of the recipe.
    `decided_by`: other inputs of the verdict, name → digest. Raises DataError if a cache is missing.
    """
    caches = {name: plan.components[name].train.folder for name in sorted(run.caches)}
    manifests: dict[str, Manifest] = {}
    for name, folder in caches.items():
        with suppress(DataError):
            manifests[name] = read_manifest(folder)
    check_caches([name for name in caches if name not in manifests], plan, home)
    differences = {name: verify_component(name, plan, home) for name in caches}
    damaged = {name for name, found in differences.items() if any(one.what == DAMAGED for one in found)}  # not scanned
    whole = {name: folder for name, folder in caches.items() if name not in damaged}
    scans = scan_caches(whole, plan, limits.leakage, home, own=own)
    order, shifts = order_evidence(run, limits.order)
    packed = packing_evidence(run)
    expected = {name: scan_key(manifest.digest, scans.items.digest, limits.leakage) for name, manifest in manifests.items()}
    near: dict[str, NearCount] = {}
    for name in caches:
        if (found := read_near_copies(plan.components[name])) is not None:
            near[name] = NearCount(found.near_copies, [sample.in_words for sample in found.samples])
    evidence = DataEvidence(
        caches=cache_evidence(caches, near),
        differences=differences_evidence({name: [one.as_json() for one in found] for name, found in differences.items()}, caches),
        mixture=mixture_evidence(
            MixtureSchedule.of_run(run),
            start_step=run.start_step,
            stop_step=run.stop_step,
            rows=dict(zip(packed["component"], packed["rows"], strict=True)),
            seq_len=run.model.seq_len,
            epochs_before={name: epochs_of(drawn, caches[name]) for name, drawn in rows_before.items() if name in caches},
        ),
        order=order,
        shifts=shifts,
        leakage=leakage_evidence(scans.scans, scans.items, limits.leakage, scan_keys=scans.keys, expected_scan_keys=expected),
        leaked_items=leaked_items(scans.scans),
        hand_off=hand_off,
        packing=packed,
    )
    subject, folder = f"{run.recipe}/{run.scale}/{run.phase} data", as_path(run.verdict).with_suffix("")
    verdict = judge_data(subject, evidence, limits=limits, folder=folder, decided_by=decided_by, accepts=accepts, asks_people=asks_people)
    write_verdict(run.verdict, verdict)
    return verdict


def judge_phase_health(
    run: RunConfig, limits: HealthLimits, home: Home, *, accepts: Sequence[AcceptedWarning] = (), asks_people: AsksPeople = NOBODY
) -> Verdict:
    """Judge the training of a phase by its metrics, and write the verdict."""
    from phasewise.trainer.state import groups  # it imports jax

    metrics = RunFolder(run.output).metrics
    path = home.verdict(f"{run.recipe}-{run.scale}", run.phase, "health")
    tables = {"health": health_evidence(read_metrics(metrics), limits, groups=groups(run.model))}
    subject, judged = f"{run.recipe}/{run.scale}/{run.phase} training", {str(metrics): digest_of_file(metrics)}
    verdict = judge_suite(HEALTH_SUITE, subject, tables, limits, accepts, asks_people, judged=judged, folder=path.with_suffix(""))
    write_verdict(path, verdict)
    return verdict


def epochs_of(drawn: Iterable[DrawnRows], folder: Path) -> float:
    """Return the epochs of a cache in these rows. They are counted in rows, because packed rows have padding and drop tokens."""
    cache = TokenCache.open(folder)
    epochs = 0.0
    for one in drawn:
        rows = cache.manifest.tokens / one.seq_len
        if one.packing != "chunk":
            rows = ComponentRows(cache, RowRule(one.packing), one.seq_len).num_rows
        epochs += one.sequences / rows if rows else 0.0
    return epochs
