"""A writer's way through the sidecar beside it."""
