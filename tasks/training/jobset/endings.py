"""How the pods of a JobSet ended, and which of them was the reason: the cluster ends all others when one has failed.

What a cluster says of a pod: the container's exit code and the second in which it ended, whether somebody deleted the pod, and whether that
was for the node's sake (the condition `DisruptionTarget`, kubernetes.io/docs/concepts/workloads/pods/disruptions).
"""

import signal
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from phasewise.tasks.training.jobset.cluster import Pod
from phasewise.tasks.training.jobset.manifest import HOSTS
from phasewise.tasks.training.protocol import rank
from phasewise.trainer.base.exit_codes import ExitCode

KILLED_BY_SIGNAL = 128
"""What a container's exit code is above, where a signal ended it."""
NOT_KNOWN = datetime.max.replace(tzinfo=UTC)
BY_THE_CLUSTER = frozenset({-signal.SIGTERM, -signal.SIGKILL, int(ExitCode.PREEMPTED)})
"""How a trainer ends that the cluster asks to stop, and that it kills when its time is over."""


class Ending(NamedTuple):
    """How one pod ended.

    Attributes:
        code: of its container, or minus the signal that ended it.
        finished_at: in whole seconds; `NOT_KNOWN` where nobody said.
        is_cut: the cluster ended it because of the others.
    """

    host: int
    name: str
    code: int
    finished_at: datetime
    is_cut: bool


def endings_of(pods: Iterable[Pod]) -> list[Ending]:
    """Of the pods that have ended, by host."""
    found = [(pod, code) for pod in pods if (code := exit_code(pod)) is not None]
    first = min((finished_at(pod) for pod, _ in found), default=NOT_KNOWN)
    return sorted(Ending(host_of(pod), pod["metadata"]["name"], code, finished_at(pod), _is_cut(pod, code, first)) for pod, code in found)


def reasons_of(endings: Sequence[Ending]) -> list[Ending]:
    """Who was the reason: of those that the cluster did not cut off, the one with the code that counts most, and of several the first.

    More than one where they ended alike in the same second: then nobody knows. Empty where all ended well, or none has ended.
    """
    failed = [one for one in endings if one.code]
    own = [one for one in failed if not one.is_cut] or failed
    if not own:
        return []
    first = min(own, key=_order)
    return [one for one in own if (_order(one), one.code) == (_order(first), first.code)]


def host_of(pod: Pod) -> int:
    """Which process a pod was, by its place among slices and hosts."""
    annotations = pod["metadata"]["annotations"]
    return int(annotations["jobset.sigs.k8s.io/job-index"]) * int(annotations[HOSTS]) + int(
        annotations["batch.kubernetes.io/job-completion-index"]
    )


def exit_code(pod: Pod) -> int | None:
    """Of its container, or minus the signal that ended it; None while it is at work, or where nobody knows."""
    ended = _terminated(pod)
    if ended is None:
        return None
    code = int(ended["exitCode"])
    is_signal = code > KILLED_BY_SIGNAL and code - KILLED_BY_SIGNAL in set(signal.Signals)
    return KILLED_BY_SIGNAL - code if is_signal else code


def finished_at(pod: Pod) -> datetime:
    """When its container ended."""
    return _time((_terminated(pod) or {}).get("finishedAt"))


def _order(ending: Ending) -> tuple[int, datetime, bool]:
    """SIGTERM last: it is what a cluster sends to the others."""
    return rank(ending.code), ending.finished_at, ending.code == -signal.SIGTERM


def _is_cut(pod: Pod, code: int, first: datetime) -> bool:
    """Whether the pod was deleted after another one had ended, and ended as one does that is deleted.

    One that ended in the same second as the first may have been the first.
    """
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp") or code not in BY_THE_CLUSTER or _is_disrupted(pod):
        return False
    deleted_at = _time(metadata["deletionTimestamp"]) - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return first <= deleted_at <= finished_at(pod) and finished_at(pod) > first


def _is_disrupted(pod: Pod) -> bool:
    """Whether its node was the reason."""
    return any(
        one.get("type") == "DisruptionTarget" and one.get("status") == "True" for one in pod.get("status", {}).get("conditions") or ()
    )


def _terminated(pod: Pod) -> dict[str, Any] | None:
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if ended := (status.get("state") or {}).get("terminated"):
            return ended
    return None


def _time(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else NOT_KNOWN
