"""A real node: kubelet, containerd and kube-proxy in namespaces of their own, so that one kill loses them with all their pods.

The node's processes, containers included, live in a process namespace; the death of its first process is a power failure. Mounts
are the node's own too, and vanish with it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import layers
from .network import Network
from .processes import Component, wait_for

PAUSE = "localhost/elasticdl-test/pause:1"
"""Image of a pod's sandbox."""

_CGROUPS = Path("/sys/fs/cgroup")
_READY_SECONDS = 60.0
_IMPORT_SECONDS = 600.0

_INIT = """
mount -t proc proc /proc
for place in /run /var/log /var/lib/cni; do mkdir -p $place; mount -t tmpfs tmpfs $place; done
keep() { while :; do "$@"; sleep 1; done; }
keep containerd --config "$1/containerd.toml" >> "$1/containerd.log" 2>&1 &
keep "$2" kube-proxy --config "$1/kube-proxy.json" >> "$1/kube-proxy.log" 2>&1 &
keep "$2" kubelet --config "$1/kubelet.json" --kubeconfig "$3" --root-dir "$1/kubelet" --cert-dir "$1/kubelet/pki" \
    --hostname-override "$4" --node-ip "$5" >> "$1/kubelet.log" 2>&1 &
while :; do wait; sleep 1; done
"""
"""First process of a node; it also takes up the children that containers leave. What is written outside the folder goes with it.

What ends is started again, as on a machine: a kubelet does if containerd is not there yet.
"""


class Node:
    """One node of the cluster."""

    def __init__(
        self,
        number: int,
        binary: Path,
        folder: Path,
        kubeconfig: Path,
        network: Network,
        lent: Path | None = None,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            number: from 1; the node's name is `node1`.
            binary: the program with all components.
            folder: for images, pods and logs.
            kubeconfig: the kubelet's own.
            network: the cluster's.
            lent: layers of images that the node has from the beginning; none: it has no image.
        """
        self.name = f"node{number}"
        self.number = number
        self._network = network
        self._folder = folder
        self._cgroup = f"{network.name}-{self.name}"
        self.address = network.add_node(number)
        folder.mkdir(parents=True, exist_ok=True)
        if lent:
            layers.lend(lent, folder / "containerd")
        self.socket = folder / "containerd.sock"
        self._takes_image = threading.Lock()
        self._write_configuration(binary, kubeconfig)
        argv = [
            *network.enter(number),
            *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child=KILL"),
            *("sh", "-c", _INIT, "node", folder, binary, kubeconfig, self.name, self.address),
        ]
        self.init = Component(self.name, [str(part) for part in argv], folder / "init.log")

    def start(self) -> None:
        """Start the node, for the first time or after it was lost."""
        # As a restart of a machine would: what lay in memory is gone.
        shutil.rmtree(self._folder / "run", ignore_errors=True)
        self.socket.unlink(missing_ok=True)
        self._make_cgroups()
        self.init.start()
        wait_for(
            f"containerd of {self.name}",
            lambda: self.socket.exists() and self._ctr("version").returncode == 0,
            _READY_SECONDS,
            (self.init,),
        )

    def lose(self) -> None:
        """Take the node's power away, when it has taken its images: kubelet, containerd and all containers are gone at once."""
        with self._takes_image:
            self.init.kill()

    def close(self) -> None:
        """End the node and remove what it left."""
        self.lose()
        for hierarchy in self._hierarchies():
            # A killed process leaves its group a moment after its death.
            gone = functools.partial(_removed, hierarchy / self._cgroup)
            wait_for(f"the end of {self.name}'s processes", gone, 30.0)

    def kill_container(self, pod: Mapping[str, Any]) -> None:
        """Kill the process of a pod that runs here."""
        (container,) = pod["status"]["containerStatuses"]
        done = self._ctr("tasks", "kill", "--signal=SIGKILL", container["containerID"].partition("://")[2])
        if done.returncode:
            raise RuntimeError(f"{self.name} can't kill {container['containerID']}: {done.stderr}")

    def load(self, archive: Path) -> None:
        """Hand an image to the node, and have it unpacked, so that no pod waits for that."""
        with self._takes_image:
            done = self._ctr("images", "import", str(archive), seconds=_IMPORT_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{self.name} can't take the image {archive}: {done.stderr}")

    def name_image(self, image: str, name: str) -> None:
        """Give an image of the node another name."""
        done = self._ctr("images", "tag", "--force", image, name)
        if done.returncode:
            raise RuntimeError(f"{self.name} can't name the image {image}: {done.stderr}")

    @property
    def client(self) -> tuple[str, ...]:
        """Return the command that speaks to the node's containerd."""
        return ("ctr", "--address", str(self.socket), "--namespace", "k8s.io")

    def _ctr(self, *arguments: str, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
        argv = [*self.client, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=seconds)

    # ------------------------------------------------------------------ configuration

    def _write_configuration(self, binary: Path, kubeconfig: Path) -> None:
        folder, pods = self._folder, self._network.pods_of(self.number)
        (folder / "cni").mkdir(exist_ok=True)
        (folder / "resolv.conf").write_text("")
        (folder / "containerd.toml").write_text(_containerd(folder, self.socket))
        _write(folder / "cni" / "10-bridge.conflist", _cni(pods))
        _write(
            folder / "kubelet.json",
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "address": self.address,
                "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
                "authorization": {"mode": "AlwaysAllow"},
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{self._cgroup}",
                "containerRuntimeEndpoint": f"unix://{self.socket}",
                "failSwapOn": False,
                "resolvConf": str(folder / "resolv.conf"),
                # A lost node is seen soon only if the others report often.
                "nodeStatusUpdateFrequency": "2s",
                "nodeLeaseDurationSeconds": 8,
                # The disk is the machine's, whose other uses are no reason to evict a test's pods.
                "evictionHard": {"memory.available": "50Mi"},
                "imageGCHighThresholdPercent": 100,
                "imageGCLowThresholdPercent": 99,
                "localStorageCapacityIsolation": False,
                "healthzPort": 0,
                "registerNode": True,
            },
        )
        _write(
            folder / "kube-proxy.json",
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "iptables",
                "clientConnection": {"kubeconfig": str(kubeconfig.with_name("proxy.kubeconfig"))},
                "hostnameOverride": self.name,
                "clusterCIDR": self._network.pods,
                "conntrack": {
                    "maxPerCore": 0,
                    "min": 0,
                    "tcpCloseWaitTimeout": "0s",
                    "tcpEstablishedTimeout": "0s",
                },
            },
        )

    def _hierarchies(self) -> list[Path]:
        return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]

    def _make_cgroups(self) -> None:
        """Make the node's group in every hierarchy; an empty `cpuset` would let nothing run."""
        for hierarchy in self._hierarchies():
            group = hierarchy / self._cgroup
            group.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (group / file).exists() and (hierarchy / file).exists():
                    (group / file).write_text((hierarchy / file).read_text())


def _removed(group: Path) -> bool:
    """Remove a control group with all below it; false as long as somebody is in it."""
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True


def _write(path: Path, body: Mapping[str, object]) -> None:
    path.write_text(json.dumps(body, indent=1))


def _cni(pods: str) -> dict[str, object]:
    bridge: dict[str, object] = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    plugins: Sequence[Mapping[str, object]] = [
        bridge,
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}


def _containerd(folder: Path, socket: Path) -> str:
    # Without CAP_SYS_RESOURCE nobody may lower a process's score, which the sandbox otherwise dies of.
    return f"""
version = 2
root = "{folder}/containerd"
state = "{folder}/run"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""
