"""JobSets and their pods, asked from the Kubernetes API by its official client. `pip install 'phasewise[gke]'` installs that."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from phasewise.trainer.base.errors import ConfigError, TrainingError

GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
BAD_REQUEST, NOT_FOUND, CONFLICT = 400, 404, 409
ASK_SECONDS = 20.0
"""How long one answer of the API server may take."""
WATCH_SECONDS = 60
LOG_SECONDS = 300.0
"""How long a pod that is followed may say nothing before it is asked again: a connection that is cut in the middle gives no end."""
CONNECTIONS = 1024
"""Of a client: each pod whose log is followed has one."""
RETRY_SECONDS, TRIES = 1.0, 5
T = TypeVar("T")
JobSet = dict[str, Any]
Pod = dict[str, Any]


class Conflict(TrainingError):
    """Somebody else wrote first."""


class Cluster:
    """One namespace of a cluster.

    Args:
        host: the address of the API server, for one that asks for no credentials; None is as `kubectl` finds it, or as a pod does.
    """

    def __init__(self, namespace: str, *, host: str | None = None) -> None:
        self.namespace = namespace
        self._kubernetes = _client()
        if host is None:
            self._load()
        known = self._kubernetes.client.Configuration
        configuration = known.get_default_copy() if host is None else known(host=host)
        configuration.connection_pool_maxsize = CONNECTIONS
        api = self._kubernetes.client.ApiClient(configuration)
        self._objects = self._kubernetes.client.CustomObjectsApi(api)
        self._core = self._kubernetes.client.CoreV1Api(api)
        self._where = (GROUP, VERSION, namespace, PLURAL)

    def create(self, manifest: JobSet) -> JobSet:
        """Raises `Conflict` where there is one of that name, and `ConfigError` where the server does not take it."""
        return self._ask(lambda: self._objects.create_namespaced_custom_object(*self._where, manifest, _request_timeout=ASK_SECONDS))

    def read(self, name: str) -> JobSet | None:
        """None where there is none."""
        return self.state(name)[0]

    def state(self, name: str) -> tuple[JobSet | None, str]:
        """The object, and the version to watch from: that of the cluster. The object's own may be one that the server has forgotten."""
        found: Any = self._ask(
            lambda: self._objects.list_namespaced_custom_object(
                *self._where, field_selector=f"metadata.name={name}", _request_timeout=ASK_SECONDS
            )
        )
        return (found["items"] or [None])[0], str(found["metadata"]["resourceVersion"])

    def annotate(self, found: JobSet, annotations: Mapping[str, str]) -> JobSet:
        """Change annotations, only if the object is still the one that was found.

        Raises:
            Conflict: somebody changed it meanwhile.
        """
        metadata = {**found["metadata"], "annotations": {**found["metadata"].get("annotations", {}), **annotations}}
        changed = {**found, "metadata": metadata}
        name = metadata["name"]
        return self._ask(lambda: self._objects.replace_namespaced_custom_object(*self._where, name, changed, _request_timeout=ASK_SECONDS))

    def delete(self, found: JobSet) -> None:
        """With its pods, which are asked to stop. It is still there until they have ended. Another one of the same name stays."""
        metadata = found["metadata"]
        only = {"propagationPolicy": "Foreground", "preconditions": {"uid": metadata["uid"]}}
        with suppress(Missing, Conflict):
            asking_again(
                lambda: self._ask(
                    lambda: self._objects.delete_namespaced_custom_object(
                        *self._where, metadata["name"], body=only, _request_timeout=ASK_SECONDS
                    )
                )
            )

    def delete_pods(self, pods: Iterable[Pod]) -> None:
        """Without any time to save."""
        for pod in pods:
            name = pod["metadata"]["name"]
            with suppress(Missing):
                self._ask(
                    lambda name=name: self._core.delete_namespaced_pod(
                        name, self.namespace, grace_period_seconds=0, _request_timeout=ASK_SECONDS
                    )
                )

    def pods(self, name: str) -> list[Pod]:
        """The pods of a JobSet that are still there, ended ones too."""
        label = f"{NAME_LABEL}={name}"
        found = self._ask(lambda: self._core.list_namespaced_pod(self.namespace, label_selector=label, _request_timeout=ASK_SECONDS))
        return self._kubernetes.client.ApiClient().sanitize_for_serialization(found)["items"]

    def log(self, pod: str, container: str, *, follows: bool) -> Iterator[bytes]:
        """What a pod's container has said from its beginning, in pieces as they come, with the time in front of each line.

        Args:
            follows: whether it goes on until the container has ended, or the connection does.

        Raises:
            NotStarted: the container has not begun.
            Missing: there is no such pod any more.
            Quiet: nothing came for long.
            Unreachable: the server or the node does not answer, or ended in the middle.
        """
        try:
            answer: Any = self._ask(
                lambda: self._core.read_namespaced_pod_log(
                    pod,
                    self.namespace,
                    container=container,
                    follow=follows,
                    timestamps=True,
                    _preload_content=False,
                    _request_timeout=(ASK_SECONDS, LOG_SECONDS),
                )
            )
        except _BadRequest as error:
            raise NotStarted(str(error)) from None
        try:
            yield from answer.stream()
        except _transport_errors() as error:
            kind = Quiet if isinstance(error, _timed_out()) else Unreachable
            raise kind(f"the log of {pod} was cut: {error}") from None
        finally:
            answer.close()

    def changes(self, name: str, since: str, on_change: Callable[[JobSet | None], None]) -> None:
        """Wait for changes of one JobSet, for at most `WATCH_SECONDS`; None is that it was deleted.

        Raises:
            WatchLost: the server has forgotten what happened since, or cannot be heard.
        """
        from kubernetes.watch import Watch

        watch = Watch()
        try:
            events: Any = watch.stream(
                self._objects.list_namespaced_custom_object,
                *self._where,
                field_selector=f"metadata.name={name}",
                resource_version=since,
                timeout_seconds=WATCH_SECONDS,
                _request_timeout=(ASK_SECONDS, WATCH_SECONDS + ASK_SECONDS),
            )
            for event in events:
                on_change(None if event["type"] == "DELETED" else event["object"])
        except Exception as error:  # of the client, of urllib3, of JSON: whatever it was, the state is asked for again
            raise WatchLost(str(error)) from error

    def _ask(self, ask: Callable[[], Any]) -> Any:
        """One request, in our own words where it fails."""
        try:
            return ask()
        except self._kubernetes.client.ApiException as error:
            said = f"the Kubernetes API answered {error.status} {error.reason}: {str(error.body)[:500]}"
            if error.status == NOT_FOUND:
                raise Missing(said) from None
            if error.status == CONFLICT:
                raise Conflict(said) from None
            if error.status == BAD_REQUEST:
                raise _BadRequest(f"{said}. Look at the cluster's settings, and start again.") from None
            if error.status in (401, 403, 422):
                raise ConfigError(f"{said}. Look at the cluster's settings, and start again.") from None
            raise Unreachable(said) from None
        except _transport_errors() as error:
            raise Unreachable(f"the Kubernetes API cannot be asked: {error}") from None

    def _load(self) -> None:
        config = self._kubernetes.config
        try:
            config.load_incluster_config()
        except config.ConfigException:
            try:
                config.load_kube_config()
            except config.ConfigException as error:
                raise ConfigError(f"the jobset launcher needs a cluster, found none that kubectl would find ({error}).") from None


class WatchLost(Exception):
    """The watch ended before its time; the state must be asked for again."""


class Unreachable(TrainingError):
    """The API server did not answer; it may answer when it is asked again."""


class Missing(TrainingError):
    """No such object."""


class Quiet(Unreachable):
    """Nothing came for `LOG_SECONDS`: there may be nothing to say, or the connection is cut."""


class NotStarted(TrainingError):
    """A pod's container has not begun yet."""


class _BadRequest(ConfigError):
    """The server does not take what is asked."""


def asking_again(ask: Callable[[], T]) -> T:
    """What is answered, asked a few times where nothing is."""
    for _ in range(TRIES - 1):
        try:
            return ask()
        except Unreachable:
            time.sleep(RETRY_SECONDS)
    return ask()


class Watched:
    """The newest state of one JobSet, kept by a thread. It asks again where a watch is lost, the server is slow, or says 410 Gone.

    Attributes:
        found: the object; None where it was deleted.
        lost: how often the watch was lost.
        changes: how often something was heard.
    """

    def __init__(self, cluster: Cluster, found: JobSet) -> None:
        self.found: JobSet | None = found
        self.lost = self.changes = 0
        self._cluster, self._name = cluster, str(found["metadata"]["name"])
        self._uid = found["metadata"].get("uid")
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobset watch", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """For a change, at most so long."""
        if self._changed.wait(seconds):
            self._changed.clear()

    def close(self) -> None:
        """No more is asked for."""
        self._ended.set()

    def _take(self, found: JobSet | None) -> None:
        if found is not None and found["metadata"].get("uid") != self._uid:
            found = None  # another one of the same name
        self.found = found
        self.changes += 1
        self._changed.set()

    def _run(self) -> None:
        while not self._ended.is_set() and self.found is not None:
            try:
                found, since = self._cluster.state(self._name)
                self._take(found)
                if found is not None:
                    self._cluster.changes(self._name, since, self._take)
            except WatchLost:
                self.lost += 1
                self._ended.wait(RETRY_SECONDS / 2)
            except (TrainingError, ConfigError):
                self._ended.wait(RETRY_SECONDS)


def _client() -> Any:
    try:
        import kubernetes
    except ImportError:
        raise ConfigError(
            "the jobset launcher needs the Kubernetes client, which is not installed: pip install 'phasewise[gke]'."
        ) from None
    return kubernetes


def _timed_out() -> type[Exception]:
    import urllib3

    return urllib3.exceptions.ReadTimeoutError


def _transport_errors() -> tuple[type[Exception], ...]:
    import urllib3

    return (urllib3.exceptions.HTTPError, OSError)
