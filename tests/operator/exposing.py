"""The operator's metrics as Prometheus reads them: what dashboards and the documentation name must be among them."""

import re

from epochal_operator.telemetry import OperatorTelemetry


def exposed() -> set[str]:
    """The names of all metrics, once something of each kind has happened; counters end in `_total`."""
    telemetry = OperatorTelemetry()
    telemetry.observe(
        requests={("GET", "ok"): 1},
        streams=lambda: 1,
        foreign=lambda: 0,
        ready=lambda: 1,
        queued=lambda: 0,
        leading=lambda: True,
    )
    telemetry.looked("ok", 0.1)
    telemetry.event("Pod")
    telemetry.missed("Pod", 1)
    text = telemetry.render().decode()
    telemetry.close()
    return {_ending(*found) for found in re.findall(r"^# TYPE (\S+?)(?:_total)? (\w+)$", text, re.MULTILINE)}


def _ending(name: str, kind: str) -> str:
    return name + ("_total" if kind == "counter" else "")
