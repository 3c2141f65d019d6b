"""The sidecar: a process that stays in a pod and passes on what writers beside it publish (docs/sidecar.md)."""
