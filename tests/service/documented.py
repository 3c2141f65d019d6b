"""What schemathesis finds where a service answers otherwise than its OpenAPI document says."""

from collections import Counter
from typing import Any

from schemathesis.engine import Status, events, from_schema


def findings(schema: Any) -> tuple[list[str], "Counter[tuple[str, int]]"]:
    """Every finding in words, and how often each operation was answered with each status."""
    found: list[str] = []
    answers: Counter[tuple[str, int]] = Counter()
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished(recorder=recorder) | events.FuzzScenarioFinished(recorder=recorder):
                found += failures(recorder)
                for interaction in recorder.interactions.values():
                    if interaction.response is not None:
                        answers[recorder.label, interaction.response.status_code] += 1
            case events.NonFatalError(label=label, value=error):
                found.append(f"{label}: {error!r}")
            case events.FatalError(exception=error):
                raise error
    return found, answers


def failures(recorder: Any) -> list[str]:
    return [
        f"{recorder.label}: {check.name}: {check.failure_info.failure}\n{check.failure_info.code_sample}"
        for checks in recorder.checks.values()
        for check in checks
        if check.status == Status.FAILURE and check.failure_info is not None
    ]
