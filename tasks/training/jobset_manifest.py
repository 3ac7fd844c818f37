"""The manifest of a JobSet: a pure function of the run, the slice that it trains on, and where its home is.

One replicated job is one slice, one pod is one host. Nothing in the cluster starts a pod again (`restartPolicy`, `backoffLimit`,
`maxRestarts`): only `tasks.training.attempts` does. Field names are those of JobSet v1alpha2.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasewise.tasks.home import SCRATCH_VARIABLE
from phasewise.tasks.preflight.slices import Slice
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.hosts import JOIN_SECONDS, SEND_SECONDS, SEND_VARIABLE
from phasewise.tasks.training.launchers import Attempt
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.process.child_process import python_command
from phasewise.trainer.process.environment import HOSTS_VARIABLE, LAUNCH_VARIABLE, SLICES_VARIABLE
from phasewise.trainer.process.rendezvous import JOIN_VARIABLE
from phasewise.trainer.process.signals import STOP_VARIABLE

PYTHON = '"$PYTHON"'
NUMBER = "N=$((SLICE * HOSTS + HOST)); export JAX_PROCESS_ID=$N; "
COMMAND = (
    NUMBER + 'L="$RUN_FOLDER/trainer-$N.log"; [ "$N" = 0 ] && L="$RUN_FOLDER/trainer.log"; '
    f'echo "the log is $L"; exec {" ".join(python_command("phasewise.trainer", python=PYTHON))} "$RUN_FOLDER/run.json" >>"$L" 2>&1'
)
"""The command of a pod. The number of the process follows from slice and host. The shell becomes the trainer, which so gets the signals."""
COMMAND_ON_STORE = NUMBER + f'exec {" ".join(python_command("phasewise.tasks.training.hosts", python=PYTHON))} "$@" --python {PYTHON} 2>&1'
"""The same if the home is on a store: the launcher reads the log from the cluster."""
API_VERSION, KIND, JOB_NAME, CONTAINER = "jobset.x-k8s.io/v1alpha2", "JobSet", "slice", "trainer"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
SLICE_INDEX = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
HOST_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
OWNER, LAUNCH, RUN, HOSTS = "phasewise/owner", "phasewise/launch", "phasewise/run", "phasewise/hosts"
PORT = 8476
SCRATCH = "/phasewise"
"""Where a pod has its part of the work of a home on a store."""
IN_MEMORY = "memory"
"""Of `ClusterSettings.scratch`: it takes no disk."""
CLUSTER_JOIN_SECONDS = 600
"""Nodes of a cluster fetch the image at different speeds. Hosts name the missing ones after 45 seconds (`trainer.process.rendezvous`)."""

ACCELERATORS: Mapping[str | None, str] = {
    "v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice", "tpu7x": "tpu7x",
}  # fmt: skip
"""A chip's kind → the label `cloud.google.com/gke-tpu-accelerator` of its nodes (cloud.google.com/kubernetes-engine/docs/concepts/tpus)."""


class ClusterSettings(Frozen):
    """What of the cluster a manifest needs.

    Attributes:
        image: holds this project with its environment; `python` there is the one that trains.
        claim: the PersistentVolumeClaim that holds the home, for many readers and writers; None with a home on a store.
        mount: where the home is in every pod, and here: paths in `run.json` must be true in both.
        stop_seconds: how long a pod may take to save when it is asked to stop.
        passed_on: variables of this process that every pod has, too.
        scratch: with a home on a store where pods have their part of the work: a folder of the node, or `memory`; None is a folder that the
            node makes for the pod.
        send_seconds: how long a pod may upload, with a home on a store.
    """

    image: str
    namespace: str = "default"
    claim: str | None = None
    mount: str | None = None
    service_account: str | None = None
    python: str = "python"
    stop_seconds: float = 30.0
    passed_on: Mapping[str, str] = {}
    scratch: str | None = None
    send_seconds: float = SEND_SECONDS


def build_manifest(attempt: Attempt, slices: Slice, settings: ClusterSettings, *, name: str, kept: Kept | None = None) -> dict[str, Any]:
    """Build the JobSet of one attempt of a run.

    Args:
        name: of the JobSet, at most 40 letters; the names of its pods begin with it.
        kept: where the work is on a store, and here; None is that pods see the run's folder.
    """
    topology = slices.chip.topology
    if topology not in ACCELERATORS:
        raise ConfigError(
            f"a JobSet on GKE needs a slice of TPUs ({', '.join(filter(None, ACCELERATORS))}), found {slices.name} of "
            f"{slices.chip.device_kind}: name one that deployments/slices.toml has, or choose another launcher."
        )
    hosts = slices.hosts // slices.count
    volumes, container = _container(attempt, slices, settings, name, kept)
    pod = {
        "metadata": {"annotations": {LAUNCH: attempt.name, HOSTS: str(hosts)}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(settings.stop_seconds + (0.0 if kept is None else settings.send_seconds)),
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[topology],
                "cloud.google.com/gke-tpu-topology": "x".join(map(str, slices.torus)),
            },
            **({"serviceAccountName": settings.service_account} if settings.service_account else {}),
            "volumes": volumes,
            "containers": [container],
        },
    }
    job = {"parallelism": hosts, "completions": hosts, "completionMode": "Indexed", "backoffLimit": 0, "template": pod}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {"app": "phasewise"},
            "annotations": {
                EXCLUSIVE: "cloud.google.com/gke-nodepool",
                OWNER: attempt.owner,
                LAUNCH: attempt.name,
                RUN: f"{attempt.run.recipe}/{attempt.run.scale}/{attempt.run.phase}",
            },
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "failurePolicy": {"maxRestarts": 0},
            "successPolicy": {"operator": "All"},
            "replicatedJobs": [{"name": JOB_NAME, "replicas": slices.count, "template": {"spec": job}}],
        },
    }


def _container(
    attempt: Attempt, slices: Slice, settings: ClusterSettings, name: str, kept: Kept | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the volumes and the container of a pod."""
    chips = str(min(slices.chip.chips_per_host, slices.chips_of_each))
    names = host_names(name, slices)
    values = {
        **settings.passed_on,
        "PYTHON": settings.python,
        "HOSTS": str(slices.hosts // slices.count),
        "JAX_COORDINATOR_ADDRESS": f"{names[0]}:{PORT}",
        "JAX_NUM_PROCESSES": str(len(names)),
        LAUNCH_VARIABLE: attempt.name,
        SLICES_VARIABLE: str(slices.count),
        HOSTS_VARIABLE: ",".join(one.partition(".")[0] for one in names),
        STOP_VARIABLE: f"{settings.stop_seconds:g}",
    }
    fields = {"SLICE": SLICE_INDEX, "HOST": HOST_INDEX}
    if slices.count > 1:
        values |= {"MEGASCALE_COORDINATOR_ADDRESS": names[0], "MEGASCALE_NUM_SLICES": str(slices.count)}
        fields["MEGASCALE_SLICE_ID"] = SLICE_INDEX
    if kept is None:
        values |= {"RUN_FOLDER": str(attempt.folder), JOIN_VARIABLE: str(CLUSTER_JOIN_SECONDS)}
        command = [COMMAND]
        volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": settings.claim}}] if settings.claim else []
    else:
        values |= {SCRATCH_VARIABLE: SCRATCH, SEND_VARIABLE: f"{settings.send_seconds:g}", "PYTHONUNBUFFERED": "1"}
        values[JOIN_VARIABLE] = str(JOIN_SECONDS)
        command = [COMMAND_ON_STORE, "host", str(kept.store), kept.run_name, Path(attempt.run.output).name, str(kept.work)]
        disk = {"emptyDir": {"medium": "Memory"} if settings.scratch == IN_MEMORY else {}}
        if settings.scratch and settings.scratch != IN_MEMORY:
            disk = {"hostPath": {"path": settings.scratch, "type": "DirectoryOrCreate"}}
        volumes = [{"name": "scratch", **disk}]
    return volumes, {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["/bin/sh", "-c", *command],
        "ports": [{"containerPort": PORT}],
        "env": [
            *({"name": key, "value": value} for key, value in values.items()),
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
        ],
        "resources": {"requests": {"google.com/tpu": chips}, "limits": {"google.com/tpu": chips}},
        "volumeMounts": [{"name": one["name"], "mountPath": SCRATCH if kept else settings.mount} for one in volumes],
    }


def host_names(name: str, slices: Slice) -> list[str]:
    """Return the pods' names for one another, in the order of the processes."""
    each = slices.hosts // slices.count
    return [f"{name}-{JOB_NAME}-{one}-{host}.{name}" for one in range(slices.count) for host in range(each)]
