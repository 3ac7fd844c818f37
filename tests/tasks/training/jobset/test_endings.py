"""Which pod was the reason: the cluster ends the others, and the launcher looks when all have ended."""

from typing import Any

import pytest

from phasewise.tasks.training.jobset.endings import endings_of, exit_code, reasons_of

KILLED, TERMINATED, ABORTED = 137, 143, 134


def pod(host: int, code: int | None, at: int = 0, *, deleted_at: int | None = None, disrupted: bool = False, slices: int = 2) -> Any:
    """One that ended in that second; `deleted_at` is when it was deleted, with 30 seconds to save."""
    annotations = {
        "jobset.sigs.k8s.io/job-index": str(host // slices),
        "batch.kubernetes.io/job-completion-index": str(host % slices),
        "phasewise/hosts": str(slices),
    }
    metadata: dict[str, Any] = {"name": f"pod-{host}", "annotations": annotations}
    if deleted_at is not None:
        metadata |= {"deletionTimestamp": f"2026-01-01T00:01:{deleted_at:02}Z", "deletionGracePeriodSeconds": 60}
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{at:02}+00:00"}}
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}] if disrupted else []
    return {"metadata": metadata, "status": {"conditions": conditions, "containerStatuses": [{"state": state}]}}


def named(*pods: Any) -> tuple[list[int], int | None]:
    """Hosts and code of the reason."""
    reasons = reasons_of(endings_of(pods))
    return [one.host for one in reasons], reasons[0].code if reasons else None


def test_of_two_that_were_killed_the_first_is_named():
    """The others have their time to save, and are killed when it is over."""
    assert named(pod(0, KILLED, 40), pod(1, KILLED, 10)) == ([1], -9)
    assert named(pod(0, KILLED, 10), pod(1, KILLED, 40)) == ([0], -9)


def test_who_was_ended_because_of_the_others_is_not_the_reason():
    assert named(pod(0, KILLED, 40, deleted_at=10), pod(1, 5, 10)) == ([1], 5), "it was deaf, and nobody asked it before"
    assert named(pod(0, 75, 12, deleted_at=10), pod(1, 5, 10)) == ([1], 5)
    assert named(pod(0, TERMINATED, 11, deleted_at=10), pod(1, ABORTED, 9)) == ([1], -6)


def test_one_that_ended_before_it_was_deleted_has_its_say():
    """When a JobSet is deleted, so are the pods that have ended."""
    assert named(pod(0, ABORTED, 12, deleted_at=20), pod(1, KILLED, 10, deleted_at=20)) == ([1], -9)


def test_one_whose_node_is_taken_away_is_the_reason():
    assert named(pod(0, 5, 12), pod(1, KILLED, 40, deleted_at=10, disrupted=True)) == ([1], -9)


def test_in_the_same_second_a_kill_was_before_what_the_cluster_sends():
    assert named(pod(0, TERMINATED, 10, deleted_at=10), pod(1, KILLED, 10)) == ([1], -9)


def test_who_ended_alike_in_the_same_second_is_named_together():
    assert named(pod(0, KILLED, 10), pod(1, KILLED, 10), pod(2, ABORTED, 10)) == ([0, 1], -9)


def test_what_starting_again_does_not_cure_counts_before_all():
    assert named(pod(0, KILLED, 10), pod(1, 7, 12)) == ([1], 7)
    assert named(pod(0, 75, 10), pod(1, 9, 10)) == ([1], 9), "it is saved"


def test_where_all_are_done_or_none_has_ended_nobody_is_the_reason():
    assert named(pod(0, 0, 10), pod(1, 0, 11)) == ([], None)
    assert named(pod(0, None), pod(1, None)) == ([], None)
    assert named(pod(0, None), pod(1, KILLED, 3)) == ([1], -9)


def test_where_a_cluster_says_no_times_those_that_ended_alike_are_named_together():
    pods = [pod(0, KILLED, 40), pod(1, KILLED, 10), pod(2, ABORTED, 3)]
    for one in pods:
        del one["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    assert named(*pods) == ([0, 1], -9)


def test_hosts_are_counted_over_slices():
    assert [one.host for one in endings_of([pod(3, 5), pod(0, 5)])] == [0, 3]


@pytest.mark.parametrize(("said", "code"), [(0, 0), (75, 75), (137, -9), (143, -15), (255, 255)])
def test_the_code_of_a_container(said: int, code: int):
    assert exit_code({"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": said}}}]}}) == code
    assert exit_code({"status": {}}) is None
