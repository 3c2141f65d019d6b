"""The operator: makes the streams that are declared in a Kubernetes cluster run there."""
