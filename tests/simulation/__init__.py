"""A seeded simulation of whole streams: publishers, writers, subscribers, and the network between them.

It only uses the machines. All chance comes from one seed, so a run that breaks a rule can be
replayed.
"""

from tests.simulation.oracle import Violation
from tests.simulation.run import Report, SimulationFailed, simulate
from tests.simulation.scenario import Scenario

__all__ = ["Report", "Scenario", "SimulationFailed", "Violation", "simulate"]
