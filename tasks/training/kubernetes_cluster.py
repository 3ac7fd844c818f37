"""JobSets, their pods and their logs, by the official client of the Kubernetes API (`pip install 'phasewise[gke]'`)."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, TrainingError

GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
REQUEST_SECONDS = 20.0
LOG_SECONDS = 300.0  # a log without lines for this time is requested again: a broken connection has no end
REST_SECONDS = 60.0  # the limit for the rest of the logs after all pods have ended
CONNECTIONS = 1024  # each followed log has a connection
RETRY_SECONDS, TRIES = 1.0, 5
T = TypeVar("T")
JobSet = dict[str, Any]
Pod = dict[str, Any]


class Unreachable(TrainingError):
    """The API server did not answer. A retry may succeed."""


class Missing(TrainingError):
    """The object does not exist."""


class Conflict(TrainingError):
    """Another client changed the object first."""


class NotStarted(ConfigError):
    """The server rejects the request. For a log: the container has not started."""


class Cluster:
    """A namespace of the cluster of `kubectl` or of this pod, or of an API server without credentials (`host`)."""

    def __init__(self, namespace: str, *, host: str | None = None) -> None:
        try:
            import kubernetes
            import urllib3
        except ImportError:
            raise ConfigError(
                "the jobset launcher needs the Kubernetes client, which is not installed: pip install 'phasewise[gke]'."
            ) from None
        self.namespace = namespace
        self._client: Any = kubernetes.client
        self._transport_errors = (urllib3.exceptions.HTTPError, OSError)
        if host is None:
            config = kubernetes.config
            try:
                config.load_incluster_config()
            except config.ConfigException:
                try:
                    config.load_kube_config()
                except config.ConfigException as error:
                    raise ConfigError(f"the jobset launcher needs a cluster, found none that kubectl would find ({error}).") from None
        known = self._client.Configuration
        configuration = known.get_default_copy() if host is None else known(host=host)
        configuration.connection_pool_maxsize = CONNECTIONS
        self._api = self._client.ApiClient(configuration)
        self._objects = self._client.CustomObjectsApi(self._api)
        self._core = self._client.CoreV1Api(self._api)
        self._where = (GROUP, VERSION, namespace, PLURAL)

    def create(self, manifest: JobSet) -> JobSet:
        """Create a JobSet."""
        return self._request(self._objects.create_namespaced_custom_object, *self._where, manifest)

    def read(self, name: str) -> JobSet | None:
        """Return the JobSet, or None if it does not exist."""
        with suppress(Missing):
            return self._request(self._objects.get_namespaced_custom_object, *self._where, name)
        return None

    def delete(self, found: JobSet) -> None:
        """Delete a JobSet with its pods, which may save first. It exists until they have ended. Another JobSet of its name remains."""
        metadata = found["metadata"]
        only = {"propagationPolicy": "Foreground", "preconditions": {"uid": metadata["uid"]}}
        with suppress(Missing, Conflict):
            with_retries(lambda: self._request(self._objects.delete_namespaced_custom_object, *self._where, metadata["name"], body=only))

    def delete_pods(self, pods: Iterable[Pod]) -> None:
        """Delete pods immediately."""
        for pod in pods:
            with suppress(Missing):
                self._request(self._core.delete_namespaced_pod, pod["metadata"]["name"], self.namespace, grace_period_seconds=0)

    def pods(self, name: str) -> list[Pod]:
        """Return the existing pods of a JobSet, including ended pods."""
        found = self._request(self._core.list_namespaced_pod, self.namespace, label_selector=f"{NAME_LABEL}={name}")
        return self._api.sanitize_for_serialization(found)["items"]

    def log_lines(self, pod: str, container: str, *, follows: bool) -> Iterator[bytes]:
        """Yield all lines of a pod's log, each with its time."""
        answer = self._request(
            self._core.read_namespaced_pod_log, pod, self.namespace, container=container, follow=follows, timestamps=True,
            _preload_content=False, _request_timeout=(REQUEST_SECONDS, LOG_SECONDS),
        )  # fmt: skip
        rest = b""
        try:
            for piece in answer.stream():
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
            yield from [rest] if rest and not follows else []
        except self._transport_errors as error:
            raise Unreachable(f"the log of {pod} was cut: {error}") from None
        finally:
            answer.close()

    def _request(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **{"_request_timeout": REQUEST_SECONDS, **options})
        except self._client.ApiException as error:
            said = f"the Kubernetes API answered {error.status} {error.reason}: {str(error.body)[:500]}"
            kinds: dict[int, type[Exception]] = {400: NotStarted, 404: Missing, 409: Conflict}
            kind = ConfigError if error.status in (401, 403, 422) else kinds.get(error.status, Unreachable)
            raise kind(f"{said}. Look at the cluster's settings, and start again." if issubclass(kind, ConfigError) else said) from None
        except self._transport_errors as error:
            raise Unreachable(f"the Kubernetes API cannot be reached: {error}") from None


class PodLog:
    """A thread that appends a pod's log to a file. After a broken connection the log is read again: its times compare as bytes."""

    def __init__(self, cluster: Cluster, pod: str, container: str, path: Path) -> None:
        self._cluster, self._pod, self._container, self._path = cluster, pod, container, path
        self._ended = threading.Event()
        self.end = self._ended.set  # call `end` after the pod's end: its log is read once more
        self._thread = threading.Thread(target=self._run, name=f"log of {pod}", daemon=True)
        self._thread.start()

    def join(self, until: float) -> None:
        """Wait for the rest of the log, until a monotonic time."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._write(f"the rest of the log of {self._pod} could not be read".encode())

    def _run(self) -> None:
        self._write(f"log of {self._pod}:".encode())
        is_last, has_reported, after = False, False, b""
        while not is_last:
            is_last = self._ended.is_set()
            try:
                for line in self._cluster.log_lines(self._pod, self._container, follows=not is_last):
                    stamp, _, said = line.partition(b" ")
                    if not stamp[:4].isdigit():  # a node without the log answers 200 and an error message
                        raise Unreachable(f"the node says: {line.decode(errors='replace')[:300]}")
                    if stamp > after:
                        self._write(said)
                        after = stamp
                has_reported = False
            except NotStarted:
                pass
            except Missing:
                self._write(f"{self._pod} is gone, and its last lines may be missing".encode())
                return
            except (Unreachable, ConfigError) as error:
                if not has_reported:
                    say(f"the log of {self._pod} cannot be read at the moment: {error}")
                has_reported, is_last = True, False
                time.sleep(RETRY_SECONDS)
            self._ended.wait(RETRY_SECONDS)

    def _write(self, line: bytes) -> None:
        with open(self._path, "ab") as file:
            file.write(line + b"\n")


def with_retries(request: Callable[[], T]) -> T:
    """Repeat a request a few times if the server does not answer."""
    for _ in range(TRIES - 1):
        try:
            return request()
        except Unreachable:
            time.sleep(RETRY_SECONDS)
    return request()
