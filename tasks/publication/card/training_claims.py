"""What a card claims of a phase's training: its settings, lineage, mixture, order and last checkpoint, from the files of its run."""

from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pydantic import ValidationError

from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, METRICS_NAME, RESULT_NAME, RUN_NAME, RunFolder
from phasewise.trainer.config import RunConfig, sequences_between
from phasewise.trainer.config.added import without_added
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.passed_over import passed_over_in

FINAL_LOSS_UPDATES = 10
"""As the trainer takes the mean for its result."""
ABOUT = "about/metadata"
STAMPS = "_CHECKPOINT_METADATA"


class Trained(NamedTuple):
    """A phase's run as its folder says it; `folder` and `checkpoint` are paths in the home."""

    run: RunConfig
    result: dict[str, Any]
    folder: str
    checkpoint: str


def read_trained(files: HomeFiles, run_name: str, phase: str, field: str) -> Trained | None:
    """The run and its result; None where one is missing or does not read."""
    folder = f"runs/{run_name}/{phase}"
    written = files.json(f"{field}.settings", f"{folder}/{RUN_NAME}")
    result = files.json(field, f"{folder}/{RESULT_NAME}")
    run = None if written is None else files.tried(f"{field}.settings", lambda: RunConfig.model_validate(written), ValidationError)
    if run is None or not isinstance(result, dict):
        return None
    return Trained(run, result, folder, f"{folder}/{CHECKPOINTS_NAME}/{run.stop_step}")


def training_claims(files: HomeFiles, trained: Trained) -> dict[str, Any]:
    """Settings and result. `run_digest` is the digest of `settings`: it can be worked out from the card alone. `tokens` are places of rows,
    and `counted_tokens`, where not all of them are predicted, those that are.
    """
    run, result, folder, _ = trained
    if result.get("run_digest") not in (run.digest, run.digest_with_places):
        files.problem("training.run_digest", f"result.json says {str(result.get('run_digest'))[:16]}, run.json has {run.digest[:16]}")
    sequences = sequences_between(run.batch, run.start_step, run.stop_step) - passed_over_in(result).sequences(run)
    files.agree("training.tokens", "its settings give", result.get("tokens"), run.model.seq_len * sequences)
    rows = read_metrics(RunFolder(files.place(folder)).metrics)
    counted = [row["counted_tokens"] for row in rows if "counted_tokens" in row]
    files.agree("training.counted_tokens", "its metrics give", result.get("counted_tokens"), round(sum(counted)) if counted else None)
    losses = [row["loss"] for row in rows][-FINAL_LOSS_UPDATES:]
    files.agree("training.final_loss", "its metrics give", result.get("final_loss"), sum(losses) / len(losses) if losses else None)
    stamps = files.json("training.finished", f"{trained.checkpoint}/{STAMPS}") or {}
    return {
        "settings": without_added(run.decisive),
        "run_digest": run.digest,
        "params_digest": result.get("params_digest"),
        "tokens": result.get("tokens"),
        **({"counted_tokens": result["counted_tokens"]} if "counted_tokens" in result else {}),
        "final_loss": result.get("final_loss"),
        "finished": _moment(stamps.get("commit_timestamp_nsecs")),
        "rests_on": files.ground(
            f"{folder}/{RUN_NAME}", f"{folder}/{RESULT_NAME}", f"{folder}/{METRICS_NAME}", f"{trained.checkpoint}/{STAMPS}"
        ),
    }


def mixture_claims(files: HomeFiles, trained: Trained) -> dict[str, Any]:
    """Percent of each component from a step on, over the whole lineage, as the order of the data needs it."""
    shares = {str(step): dict(of_step) for step, of_step in trained.run.mixture.root}
    return {"unit": "percent of sequences", "at_step": shares, "rests_on": files.ground(f"{trained.folder}/{RUN_NAME}")}


def order_claims(files: HomeFiles, trained: Trained) -> dict[str, Any]:
    """The data order contract that lies in the last checkpoint, which must be that of the run's settings."""
    run, path = trained.run, f"{trained.checkpoint}/{ABOUT}"
    about = files.json("order", path)
    if not isinstance(about, dict) or not isinstance(contract := about.get("contract"), dict):
        files.problem("order", f"{path} holds no data order contract")
        return {}
    saved = files.tried("order", lambda: RunConfig.model_validate(about.get("run")), ValidationError)
    if saved is not None:
        files.agree("training.run_digest", "the checkpoint's run has", run.digest, saved.digest)
    settings = run.model_dump(mode="json", include={"batch", "mixture", "order", "model"})
    order = settings["order"]
    found = {
        "seed": order["seed"],
        "block_sequences": order["block_sequences"],
        "rounding": order["rounding"],
        "first_step": order["first_step"],
        "seq_len": settings["model"]["seq_len"],
        "batch": settings["batch"],
        "mixture": settings["mixture"],
    }
    for name, value in found.items():
        files.agree(f"order.{name}", "the run's settings say", contract.get(name), value)
    kind = (contract.get("permutation") or {}).get("kind")
    files.agree("order.permutation.kind", "the run's settings say", kind, order["permutation"])
    buffer = (contract.get("buffer") or {}).get("documents")
    files.agree("order.buffer.documents", "the run's settings say", buffer, order["buffer_documents"])
    files.agree("order.packing", "the run's settings say", contract.get("packing"), "buffer" if buffer else run.packing)
    files.agree("order.loss_on", "the run's settings say", contract.get("loss_on", "all"), run.loss_on)
    kept = {name: value for name, value in contract.items() if name != "mixture"}
    return {**kept, "rests_on": files.ground(path)}


def checkpoint_claims(files: HomeFiles, trained: Trained) -> dict[str, Any]:
    """Every file of the last checkpoint, and the digest of the weights in it. Its bytes are read here."""
    field, folder = "checkpoint.files", trained.checkpoint
    digests = files.json("checkpoint", f"{folder}/digests.json") or {}
    said: dict[str, Any] = digests.get("files", {})
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(said):
        path = f"{folder}/{name}"
        digest = files.check(f"{field}.{name}", path, str(said[name]["sha256"]))
        place = files.place(path)
        found[name] = {"size_bytes": place.stat().st_size if place.is_file() else 0, "sha256": digest}
    whole = files.place(folder)
    there = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    for name in sorted(there - set(said) - {"digests.json"}):
        files.problem(f"{field}.{name}", "the checkpoint's digests.json does not name this file")
    _check_weights(files, trained)
    step = trained.run.stop_step
    return {"step": step, "where": folder, "files": found, "rests_on": files.ground(f"{folder}/digests.json")}


def lineage_claims(files: HomeFiles, trained: Trained, run_name: str) -> list[dict[str, Any]]:
    """The phases that led here, the first one first, this one last: each with the weights that the next one started from."""
    lineage = [_phase_claims(files, trained, f"lineage.{trained.run.phase}", trained.run.stop_step)]
    current = trained
    while current.run.start is not None:
        parent, step = _named_in(current.run.start.checkpoint)
        field = f"lineage.{parent}"
        found = read_trained(files, run_name, parent, field)
        if found is None:
            break
        claims = _phase_claims(files, found, field, step)
        expected = current.run.start.params_digest
        if step == found.run.stop_step:
            files.agree(f"{field}.params_digest", f"{current.run.phase} started from", claims["params_digest"], expected)
        else:
            files.skip(f"{field}.params_digest", f"the weights of its step {step}, before its end, were not read")
        claims["params_digest"] = expected
        for graft in current.run.start.graft:
            files.skip(
                f"lineage.{current.run.phase}.start.graft",
                f"the {graft.part} in {'/'.join(map(str, _named_in(graft.checkpoint)))} was not read",
            )
        lineage.insert(0, claims)
        current = found
    return lineage


def _phase_claims(files: HomeFiles, trained: Trained, field: str, left_at: int) -> dict[str, Any]:
    run, result = trained.run, trained.result
    if result.get("run_digest") not in (run.digest, run.digest_with_places):
        files.problem(f"{field}.run_digest", f"result.json says {str(result.get('run_digest'))[:16]}, run.json has {run.digest[:16]}")
    start = None
    if run.start is not None:
        parent, step = _named_in(run.start.checkpoint)
        grafts = [{**dict(zip(("phase", "step"), _named_in(one.checkpoint), strict=True)), "part": one.part} for one in run.start.graft]
        start = {"parent": parent, "step": step, "params_digest": run.start.params_digest, "fresh": list(run.start.fresh), "graft": grafts}
    return {
        "phase": run.phase,
        "start_step": run.start_step,
        "stop_step": run.stop_step,
        "left_at_step": left_at,
        "seed": run.seed,
        "start": start,
        "run_digest": run.digest,
        "params_digest": result.get("params_digest"),
        "rests_on": files.ground(f"{trained.folder}/{RUN_NAME}", f"{trained.folder}/{RESULT_NAME}"),
    }


def _named_in(checkpoint: str) -> tuple[str, int]:
    """Phase and step of a checkpoint, by its place: `…/PHASE/checkpoints/STEP`."""
    parts = PurePosixPath(checkpoint).parts
    return parts[-3], int(parts[-1])


def _check_weights(files: HomeFiles, trained: Trained) -> None:
    """That the weights in the checkpoint have the digest that the result names."""
    from phasewise.trainer.checkpoints.state import saved_params_digest  # it imports JAX

    field, said = "training.params_digest", trained.result.get("params_digest")
    if any(one.field.startswith("checkpoint") for one in (*files.problems, *files.unread)):
        files.skip(field, "the weights were not read: the checkpoint's files are damaged or were not all read")
        return
    path = files.place(trained.checkpoint)
    try:
        found = saved_params_digest(path)
    except (CheckpointError, ValueError, OSError) as error:
        files.problem(field, f"the weights do not read: {' '.join(str(error).split())}")
        return
    files.agree(field, "the weights in the checkpoint have", said, found)


def _moment(nanoseconds: Any) -> str | None:
    if not isinstance(nanoseconds, int):
        return None
    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
