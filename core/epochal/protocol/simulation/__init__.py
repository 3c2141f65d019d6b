"""A seeded simulation of whole streams: publishers, writers, subscribers, and the network between them.

Apart from the machines because it only uses them. All chance comes from one seed, so a run that breaks a rule can be
replayed.
"""

from epochal.protocol.simulation.oracle import Violation
from epochal.protocol.simulation.run import Report, SimulationFailed, simulate
from epochal.protocol.simulation.scenario import Scenario

__all__ = ["Report", "Scenario", "SimulationFailed", "Violation", "simulate"]
