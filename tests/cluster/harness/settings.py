"""The configuration of a node's components, as text; a comment says why it differs from a default.

The whole shape of the node is in this one place.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.apiserver import SERVICES, api_flags, etcd
from tests.cluster.harness.images import COREDNS, PAUSE

NODE = "node"
DNS = "10.96.0.10"
PODS = "10.244.0.0/16"
CNI_PROGRAMS = "/usr/lib/cni"
SOCKET = "/run/containerd/containerd.sock"
API_PORT = 6443
VOLUMES = "epochal.dev/volumes-for-tests"
"""The provisioner of the storage class `standard`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The files and addresses of one node, different from those of other nodes on the same machine."""

    directory: Path
    number: int

    @property
    def name(self) -> str:
        """The name of the link to the node, and of its control group."""
        return f"epochal{self.number}"

    @property
    def host_address(self) -> str:
        """The address of the machine's end of the link: 198.18.0.0/15 is reserved for tests of networks."""
        return f"198.18.{self.number}.1"

    @property
    def address(self) -> str:
        """The node's address, at which the machine reaches the API server and node ports."""
        return f"198.18.{self.number}.2"

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return f"https://{self.address}:{API_PORT}"

    def key(self, user: str) -> tuple[Path, Path]:
        """Certificate and key of a user or server."""
        file = user.replace(":", "-")
        return self.directory / "keys" / f"{file}.crt", self.directory / "keys" / f"{file}.key"

    def kubeconfig(self, component: str) -> Path:
        """The kubeconfig with which a component of the node talks to the API server."""
        return self.directory / f"{component}.kubeconfig"


def containerd(layout: Layout, snapshotter: str) -> str:
    """The configuration of containerd."""
    return f"""
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE; without this every pod fails then
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PROGRAMS}"
conf_dir = "{layout.directory}/cni"
"""


def network() -> str:
    """The CNI configuration: a routed link for each pod. A bridge would hide traffic between pods from kube-proxy."""
    link = {
        "type": "ptp",
        "mtu": 1500,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [link]})


def kubelet(layout: Layout) -> dict[str, Any]:
    """The configuration of the kubelet."""
    certificate, key = layout.key("kubelet-server")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.directory / "keys" / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "failCgroupV1": False,  # a machine may still have it
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        # The disk is the developer's: it may be nearly full, and images that were put here come from nowhere else.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "imageMaximumGCAge": "0s",
        "resolvConf": "/run/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "maxPods": 200,
    }


def proxy(layout: Layout) -> dict[str, Any]:
    """The configuration of kube-proxy. The limits of connection tracking are the machine's, so they stay unchanged."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(layout.kubeconfig("proxy"))},
        "mode": "nftables",
        "clusterCIDR": PODS,
        "hostnameOverride": NODE,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nodePortAddresses": ["198.18.0.0/15"],
    }


def manifests() -> list[dict[str, Any]]:
    """The objects that every cluster has: DNS and a default storage class."""
    return [*_dns(), _storage_class()]


def _storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": VOLUMES,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


_COREFILE = """
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa {
        ttl 5
    }
    cache 5
    loadbalance
}
"""


def _dns() -> list[dict[str, Any]]:
    place = {"name": "coredns", "namespace": "kube-system"}
    labels = {"k8s-app": "kube-dns"}
    role = {"name": "system:coredns"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": role,
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": role,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **role},
            "subjects": [{"kind": "ServiceAccount", **place}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": {"Corefile": _COREFILE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "clusterIP": DNS,
                "selector": labels,
                "ports": [{"name": name, "port": 53, "protocol": name.upper()} for name in ("udp", "tcp")],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {**place, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": _dns_pod()},
            },
        },
    ]


def _dns_pod() -> dict[str, Any]:
    return {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "containers": [
            {
                "name": "coredns",
                "image": COREDNS,
                "imagePullPolicy": "Never",
                "args": ["-conf", "/etc/coredns/Corefile"],
                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
                "securityContext": {"allowPrivilegeEscalation": False},
            }
        ],
        "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "53"}]},
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }


def api(layout: Layout, kube: Path) -> dict[str, list[str]]:
    """The command lines of the programs that must be there before all others."""
    client_certificate, client_key = layout.key("apiserver-kubelet-client")
    return {
        "etcd": etcd(layout.directory / "etcd", 2379, 2380),
        "apiserver": [
            *(str(kube), "apiserver", f"--advertise-address={layout.address}", f"--secure-port={API_PORT}"),
            *("--etcd-servers=http://127.0.0.1:2379", "--enable-admission-plugins=NodeRestriction"),
            *(f"--kubelet-client-certificate={client_certificate}", f"--kubelet-client-key={client_key}"),
            "--kubelet-preferred-address-types=InternalIP",  # the node's name cannot be resolved
            *api_flags(layout.directory, *layout.key("kube-apiserver")),
        ],
    }


def components(layout: Layout, kube: Path, python: str) -> dict[str, list[str]]:
    """The command lines of the programs that run beside the API server."""
    keys = layout.directory / "keys"
    return {
        "containerd": ["containerd", "--config", str(layout.directory / "containerd.toml")],
        "controller-manager": [
            *(str(kube), "controller-manager", f"--kubeconfig={layout.kubeconfig('controller-manager')}"),
            *("--leader-elect=false", "--use-service-account-credentials=true", f"--root-ca-file={keys}/ca.crt"),
            f"--service-account-private-key-file={keys}/tokens.key",
            f"--service-cluster-ip-range={SERVICES}",
            "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
        ],
        "scheduler": [
            *(str(kube), "scheduler", f"--kubeconfig={layout.kubeconfig('scheduler')}", "--leader-elect=false"),
        ],
        "kubelet": [
            *(str(kube), "kubelet", f"--config={layout.directory}/kubelet.json"),
            *(f"--kubeconfig={layout.kubeconfig('kubelet')}", f"--hostname-override={NODE}"),
            *(f"--node-ip={layout.address}", "--oom-score-adj=0", "--node-labels=topology.kubernetes.io/zone=here"),
        ],
        "proxy": [str(kube), "proxy", f"--config={layout.directory}/proxy.json"],
        **{
            name: [python, "-m", f"tests.cluster.harness.{name}", str(layout.directory), str(layout.number)]
            for name in ("volumes", "policies")
        },
    }
