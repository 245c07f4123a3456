"""The cluster's control plane: etcd, API server, controllers and scheduler, each a process that can be killed.

On loopback it needs no root, which is enough for tests of the API; with `enter` it lives in a network namespace in which nodes
reach it.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import certificates
from .processes import Component, wait_for

SERVICES = "10.96.0.0/16"
"""Addresses of Services; the API server's own is the first."""
_API_SERVICE = "10.96.0.1"
_READY_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_PENDING_PODS = re.compile(r'^scheduler_pending_pods\{queue="(\w+)"\} (\S+)$', re.M)


class ControlPlane:
    """A control plane in a folder of its own."""

    def __init__(
        self, binary: Path, folder: Path, address: str = "127.0.0.1", enter: Sequence[str] = ()
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            binary: the program with all components.
            folder: for certificates, data and logs.
            address: where the API server listens and what it tells nodes.
            enter: command that runs another one in the namespace where `address` is.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "controllers", "scheduler", "proxy")}
        self._address = address
        self._binary = binary
        self._enter = enter
        certificates.write(folder, [address, "127.0.0.1", _API_SERVICE])
        ports = [2379, 2380, 6443, 10257, 10259] if enter else free_ports(5)
        self._etcd, self._peers, self._port, self._controllers_port, self._scheduler_port = ports
        self.server = f"https://{address}:{self._port}"
        self._write_tokens({})
        for name in self.tokens:
            self.write_kubeconfig(name, self.tokens[name])
        self.etcd = self._component("etcd", self._etcd_flags())
        self.api_server = self._component("kube-apiserver", self._api_flags())
        self.controllers = self._component("kube-controller-manager", self._controller_flags())
        self.scheduler = self._component("kube-scheduler", self._scheduler_flags())

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's configuration file."""
        return self.folder / "admin.kubeconfig"

    def add_node_users(self, names: Sequence[str]) -> None:
        """Make a user for each node, before `start`."""
        for name in names:
            self.tokens[name] = secrets.token_hex(16)
            self.write_kubeconfig(name, self.tokens[name])
        self._write_tokens(dict.fromkeys(names, "system:nodes"))

    def start(self) -> None:
        """Start all components, and wait until the API answers and pods can be made."""
        self.etcd.start()
        self.recover_api_server()
        wait_for(
            "the default service account",
            lambda: self.get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
            _READY_SECONDS,
            (self.controllers,),
        )

    def lose_api_server(self) -> None:
        """Kill the API server. Controllers and scheduler end with it, as those that can't renew their leases do.

        Those that stayed would go on later than any real ones: they look again after up to a minute, and repeat what failed
        meanwhile after up to a quarter of an hour.
        """
        for component in (self.api_server, self.controllers, self.scheduler):
            component.kill()

    def recover_api_server(self) -> None:
        """Start the API server and what works with it, and wait until it answers."""
        self.api_server.start()
        wait_for("the API", lambda: self.get("/readyz") is not None, _READY_SECONDS, (self.api_server,))
        self.controllers.start()
        self.scheduler.start()

    def stop(self) -> None:
        """End all components."""
        for component in (self.scheduler, self.controllers, self.api_server, self.etcd):
            component.kill()

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return what it prints."""
        done = subprocess.run(
            [
                str(self._binary),
                "kubectl",
                f"--kubeconfig={self.kubeconfig}",
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=False,
            input=stdin,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def get(self, path: str) -> str | None:
        """Return what the API answers, or None if it does not answer in order."""
        return self._ask(urllib.request.Request(self.server + path))

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Create an object, without the price of a process, and return what the API answers. Raises RuntimeError if it refuses."""
        kind = {"Content-Type": "application/json"}
        try:
            text = self._send(urllib.request.Request(self.server + path, json.dumps(body).encode(), kind))
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode()}") from error
        return dict(json.loads(text))

    def delete(self, path: str) -> str | None:
        """Ask for an object's end; return what the API answers, or None if it does not answer in order."""
        return self._ask(urllib.request.Request(self.server + path, method="DELETE"))

    def patch(self, path: str, change: Mapping[str, object]) -> str | None:
        """Change an object, without the price of a process; return what the API answers, or None if it refuses or is away."""
        kind = {"Content-Type": "application/merge-patch+json"}
        body = json.dumps(change).encode()
        return self._ask(urllib.request.Request(self.server + path, body, kind, method="PATCH"))

    def is_scheduling(self) -> bool:
        """Tell whether the scheduler will look at pods by itself; those that wait for something else to happen are none of these."""
        request = urllib.request.Request(f"https://127.0.0.1:{self._scheduler_port}/metrics")
        request.add_header("Authorization", f"Bearer {self.tokens['admin']}")
        # It signs its own certificate.
        context = ssl._create_unverified_context()
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=context) as answer:
            found = dict(_PENDING_PODS.findall(answer.read().decode()))
        return any(float(found[queue]) > 0 for queue in ("active", "backoff"))

    def _ask(self, request: urllib.request.Request) -> str | None:
        try:
            return self._send(request)
        except (OSError, urllib.error.URLError):
            return None

    def _send(self, request: urllib.request.Request) -> str:
        request.add_header("Authorization", f"Bearer {self.tokens['admin']}")
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=context) as answer:
            body: bytes = answer.read()
            return body.decode()

    def write_kubeconfig(self, name: str, token: str, namespace: str = "default") -> Path:
        """Write a client's configuration file and return its path."""
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": self.server, "certificate-authority-data": authority}}
            ],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": name, "namespace": namespace}}
            ],
            "current-context": "test",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(body))
        return path

    # ------------------------------------------------------------------ flags

    def _component(self, name: str, flags: Mapping[str, object]) -> Component:
        argv = [
            *self._enter,
            str(self._binary),
            name,
            *(f"--{flag}={value}" for flag, value in flags.items()),
        ]
        return Component(name, argv, self.folder / f"{name}.log")

    def _write_tokens(self, nodes: Mapping[str, str]) -> None:
        users = {
            "admin": ("admin", "system:masters"),
            "controllers": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            "proxy": ("system:kube-proxy", ""),
            **{name: (f"system:node:{name}", group) for name, group in nodes.items()},
        }
        lines = [f'{self.tokens[name]},{user},{user},"{group}"\n' for name, (user, group) in users.items()]
        path = self.folder / "tokens.csv"
        path.touch(mode=0o600)
        path.write_text("".join(lines))

    def _etcd_flags(self) -> dict[str, object]:
        client, peers = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peers}"
        return {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "unsafe-no-fsync": "true",  # what a test loses with the machine is of no use to anybody
            "log-level": "warn",
        }

    def _api_flags(self) -> dict[str, object]:
        loopback = self._address.startswith("127.")
        return {
            "etcd-servers": f"http://127.0.0.1:{self._etcd}",
            "bind-address": self._address if loopback else "0.0.0.0",
            "secure-port": self._port,
            "advertise-address": self._address,
            # an address of this machine only is none that the Service could lead to
            "endpoint-reconciler-type": "none" if loopback else "lease",
            "service-cluster-ip-range": SERVICES,
            "tls-cert-file": self.folder / "server.crt",
            "tls-private-key-file": self.folder / "server.key",
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "Node,RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self.folder / "sa.pub",
            "service-account-signing-key-file": self.folder / "sa.key",
            "kubelet-preferred-address-types": "InternalIP",
            "allow-privileged": "true",
            "profiling": "false",
        }

    def _controller_flags(self) -> dict[str, object]:
        return {
            "kubeconfig": self.folder / "controllers.kubeconfig",
            "authentication-kubeconfig": self.folder / "controllers.kubeconfig",
            "authorization-kubeconfig": self.folder / "controllers.kubeconfig",
            "bind-address": "127.0.0.1",
            "secure-port": self._controllers_port,
            "leader-elect": "false",
            "root-ca-file": self.folder / "ca.crt",
            "service-account-private-key-file": self.folder / "sa.key",
            "use-service-account-credentials": "true",
            "node-monitor-period": "1s",
            "node-monitor-grace-period": "8s",
            "terminated-pod-gc-threshold": "1000",
        }

    def _scheduler_flags(self) -> dict[str, object]:
        kubeconfig = self.folder / "scheduler.kubeconfig"
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "leaderElection": {"leaderElect": False},
            # What found no room is tried again a second after there may be some, however often it has found none before.
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        }
        path = self.folder / "scheduler.json"
        path.write_text(json.dumps(configuration))
        return {
            "config": path,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": "127.0.0.1",
            "secure-port": self._scheduler_port,
        }


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
