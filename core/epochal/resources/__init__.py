"""What users declare: the manifests of streams and relays, and the planner that decides which processes run for them.

The client, the services, local mode and the operator share this one model and this one planner. Import the modules one
by one: the model costs 50 ms for pydantic, and a command that only lists streams needs no more than `names`.
"""
