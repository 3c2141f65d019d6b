"""What users declare: the Stream manifest, and the plan that makes it so.

The client, the services, local mode and the operator share this one model and this one planner. Each part is imported
by itself: the model takes pydantic some 50 ms, and a command that only lists needs no more than the names.
"""
