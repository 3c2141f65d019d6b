"""The sidecar: a process that runs in a pod and forwards what writers in this pod publish (docs/sidecar.md)."""
