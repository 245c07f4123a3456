"""Kubernetes' API as this project uses it: plain JSON objects over HTTPS, with the few errors that make a difference.

The only importer of the `kubernetes` package, which finds the cluster and shows who we are. Everything here may be called from
several threads.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl.errors import BadSetting

Object = dict[str, Any]
"""An object of the API as JSON."""

_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 30.0
_WATCH_SECONDS = 300
"""A watch is begun anew after so long, so that a connection that silently died is noticed."""
_FRACTION = re.compile(r"\.[0-9]+")
_FOLLOW_SECONDS = 86400.0
"""Without a line of a log that is followed."""
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A watch says nothing for minutes when nothing happens; one whose server has vanished is noticed after 14 seconds."""
_LINE_LIMIT = 16 * 1024 * 1024

PATHS: Mapping[str, str] = {
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "LocalSubjectAccessReview": "/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews",
    "Namespace": "/api/v1/namespaces",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "PersistentVolumeClaim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ResourceQuota": "/api/v1/namespaces/{namespace}/resourcequotas",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
}
"""Where each kind of object is found."""


class ApiError(Exception):
    """The API answered with an error.

    Attributes:
        status: HTTP status.
        reason: the API's word for it, such as `AlreadyExists`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Unreachable(OSError):
    """The API did not answer, or not in order: whether the request was carried out is open."""


class Api:
    """One namespace of a cluster, as one user."""

    def __init__(self, configuration: Any, namespace: str) -> None:
        """Use `connect` or `connect_from_pod`."""
        from kubernetes import client

        self.namespace = namespace
        self._client = client.ApiClient(configuration)

    def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """Create an object and return it as it is now; with `dry_run` only find out what the API says to it, and to unknown fields.

        Raises ApiError, Unreachable.
        """
        query = [("dryRun", "All"), ("fieldValidation", "Strict")] if dry_run else []
        return self._ask("POST", self._path(body["kind"]), body, query)

    def get(self, kind: str, name: str) -> Object:
        """Return an object. Raises ApiError with status 404 if there is none, Unreachable."""
        return self._ask("GET", self._path(kind, name))

    def has(self, kind: str, name: str) -> bool:
        """Tell whether an object is there; one that this user may not look at is taken to be. Raises Unreachable."""
        try:
            self.get(kind, name)
        except ApiError as error:
            return error.status != 404
        return True

    def replace(self, body: Object) -> Object:
        """Replace an object that still has the version in `body`. Raises ApiError with status 409 if not, Unreachable."""
        return self._ask("PUT", self._path(body["kind"], body["metadata"]["name"]), body)

    def patch(self, kind: str, name: str, change: Object) -> Object:
        """Merge `change` into an object. Raises ApiError, Unreachable."""
        return self._ask("PATCH", self._path(kind, name), change, content="application/merge-patch+json")

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        """Ask for an object's end; no error if there is none. Raises ApiError, Unreachable.

        Args:
            kind: of the object.
            name: of the object.
            grace: seconds that a pod has to end by itself; by default what the pod says.
        """
        options: Object = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self._ask("DELETE", self._path(kind, name), options)
        except ApiError as error:
            if error.status != 404:
                raise

    def list(self, kind: str, labels: str = "", fields: str = "") -> tuple[list[Object], str]:
        """Return the objects that a selector picks, and the version from which to watch. Raises ApiError, Unreachable."""
        found = self._ask("GET", self._path(kind), query=_selectors(labels, fields))
        return found.get("items") or [], found["metadata"]["resourceVersion"]

    def watch(
        self, kind: str, version: str, labels: str = "", fields: str = ""
    ) -> Iterator[tuple[str, Object]]:
        """Yield (`ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`, object) as things happen after `version`.

        Ends after some minutes. Raises ApiError with status 410 if what happened since is not known any more: list again; Unreachable.
        """
        query = [
            *_selectors(labels, fields),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(_WATCH_SECONDS)),
        ]
        for line in self._lines(self._path(kind), query, _WATCH_SECONDS + _ANSWER_SECONDS):
            try:
                event = json.loads(line)
                kind_of, body = event["type"], event["object"]
            except (ValueError, KeyError, TypeError):
                raise Unreachable("a watch broke off in the middle of a line") from None
            if kind_of == "ERROR":
                raise ApiError(
                    body.get("code", 0), body.get("reason", ""), body.get("message", "watch failed")
                )
            yield kind_of, body

    def log(self, pod: str, container: str, last: int | None = None) -> Iterator[str]:
        """Yield the lines of a container's log, or the last few. Raises ApiError, Unreachable."""
        query = [("container", container)]
        if last is not None:
            query.append(("tailLines", str(last)))
        for line in self._lines(self._path("Pod", pod) + "/log", query, _ANSWER_SECONDS):
            yield line.decode(errors="replace")

    def follow_log(self, pod: str, container: str, after: str = "") -> Iterator[tuple[str, str]]:
        """Yield (time, line) of a container's log until it ends; only those after a time that was yielded before.

        Raises ApiError, Unreachable.
        """
        query = [("container", container), ("follow", "true"), ("timestamps", "true")]
        if after:
            query.append(("sinceTime", _FRACTION.sub("", after)))  # in whole seconds
        for line in self._lines(self._path("Pod", pod) + "/log", query, _FOLLOW_SECONDS):
            stamp, _, text = line.decode(errors="replace").partition(" ")
            if stamp > after:  # as text: kubelets write all nine digits
                yield stamp, text

    def may(self, verb: str, kind: str, subresource: str = "") -> bool:
        """Tell whether this user may do something here. Raises ApiError, Unreachable."""
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": self._attributes(verb, _group_of(kind), resource_of(kind), subresource)
            },
        }
        answer = self._ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer.get("status", {}).get("allowed"))

    def may_account(self, account: str, verb: str, group: str, resource: str) -> bool:
        """Tell whether a service account may do something here. Raises ApiError if this user may not ask that, Unreachable."""
        body: Object = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": self.namespace},
            "spec": {
                "user": f"system:serviceaccount:{self.namespace}:{account}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}"],
                "resourceAttributes": self._attributes(verb, group, resource, ""),
            },
        }
        return bool(self.create(body).get("status", {}).get("allowed"))

    def _attributes(self, verb: str, group: str, resource: str, subresource: str) -> Object:
        return {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
        }

    # ------------------------------------------------------------------ requests

    def _path(self, kind: str, name: str = "") -> str:
        path = PATHS[kind].format(namespace=self.namespace)
        return f"{path}/{name}" if name else path

    def _ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Sequence[tuple[str, str]] = (),
        content: str = "application/json",
    ) -> Object:
        with self._send(method, path, body, query, content, _ANSWER_SECONDS) as answer:
            try:
                read: Object = json.loads(answer.response.data)
            except _transport_errors() as error:
                raise Unreachable(f"the API did not finish its answer: {error}") from None
            except ValueError:
                raise Unreachable("the API's answer is not JSON") from None
            return read

    def _lines(self, path: str, query: Sequence[tuple[str, str]], seconds: float) -> Iterator[bytes]:
        with self._send("GET", path, None, query, "application/json", seconds) as answer:
            rest = b""
            try:
                for piece in answer.response.stream(65536, decode_content=True):
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from lines
                    if len(rest) > _LINE_LIMIT:
                        raise Unreachable("the API sent an endless line")
            except _transport_errors() as error:
                raise Unreachable(f"the API's stream broke off: {error}") from None
            if rest:
                yield rest

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Sequence[tuple[str, str]],
        content: str,
        seconds: float,
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": content}
        try:
            request = self._client.param_serialize(
                method, path, query_params=list(query), header_params=headers, body=body,
                auth_settings=["BearerToken"],
            )  # fmt: skip
            answer = self._client.call_api(*request, _request_timeout=(_CONNECT_SECONDS, seconds))
        except _transport_errors() as error:
            raise Unreachable(f"the cluster's API does not answer: {error}") from None
        if answer.status >= 400:
            raise _error(answer)
        return answer.response and _Closing(answer)


class _Closing:
    """An answer that gives its connection back at the end of a `with`."""

    def __init__(self, answer: Any) -> None:
        self.response = answer.response

    def __enter__(self) -> _Closing:
        return self

    def __exit__(self, *error: object) -> None:
        # What was not read would come to the next who uses the connection.
        self.response.close()
        self.response.release_conn()


def resource_of(kind: str) -> str:
    """Return the word for a kind in rights and messages: `jobs`."""
    return PATHS[kind].rpartition("/")[2]


def _group_of(kind: str) -> str:
    """Return the API group of a kind, empty for the core's."""
    _, prefix, group, *_ = PATHS[kind].split("/")
    return group if prefix == "apis" else ""


def connect(namespace: str) -> Api:
    """Return the cluster of the person's kubeconfig, without one that of this pod. Raises BadSetting if there is none."""
    config, configuration = _package()
    import yaml

    kubeconfig = Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
    if "KUBERNETES_SERVICE_HOST" in os.environ and not kubeconfig.exists():
        return connect_from_pod(namespace)  # a notebook's or a pipeline's pod
    try:
        # The package itself looks at the environment only once, when it is imported.
        shown = os.environ.get("KUBECONFIG") or "~/.kube/config"
        config.load_kube_config(shown, client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise BadSetting(
            f"no Kubernetes cluster: {shown} can't be used ({why}); set KUBECONFIG, or leave --image_name out for a local job"
        ) from None
    return Api(configuration, namespace)


def connect_from_pod(namespace: str) -> Api:
    """Return the cluster that this pod lives in, as its service account. Raises BadSetting."""
    config, configuration = _package()
    try:
        config.load_incluster_config(client_configuration=configuration)
        # Environments of pods name proxies for the world outside; the API is inside.
        configuration.proxy = None
    except config.ConfigException as error:
        raise BadSetting(f"the pod has no service account that may ask the cluster's API: {error}") from None
    return Api(configuration, namespace)


def _package() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ImportError:
        raise BadSetting(
            "jobs on Kubernetes need the Kubernetes client: pip install 'kubernetes>=37,<38' 'cryptography>=44'"
        ) from None
    configuration = client.Configuration()
    configuration.retries = False  # the caller knows what may be repeated
    configuration.socket_options = list(_SOCKET_OPTIONS)
    return config, configuration


def _selectors(labels: str, fields: str) -> list[tuple[str, str]]:
    given = (("labelSelector", labels), ("fieldSelector", fields))
    return [(name, value) for name, value in given if value]


def _transport_errors() -> tuple[type[Exception], ...]:
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config import ConfigException  # while a token's file is being replaced
    from urllib3.exceptions import HTTPError

    return HTTPError, ApiException, ConfigException, OSError


def _error(answer: Any) -> Exception:
    status = int(answer.status)
    try:
        body = json.loads(answer.response.data)
        reason, message = str(body.get("reason", "")), str(body.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", ""
    except _transport_errors():
        reason, message = "", ""
    finally:
        answer.response.release_conn()
    message = message or f"the cluster's API answered with status {status}"
    if status == 429 or status >= 500:
        return Unreachable(message)
    return ApiError(status, reason, message)
