"""The operator: runs the streams that are declared in a Kubernetes cluster."""
