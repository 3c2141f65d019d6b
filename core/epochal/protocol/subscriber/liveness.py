"""When a follower last heard of its publisher, and how long it may still wait.

The only part of a follower that compares moments in time. Sources: rules Q11, S19; docs/protocol.md.
"""

from epochal.protocol.subscriber.follower_states import FollowerState

LONGEST_HEARTBEAT = 60.0
"""Seconds. No stream can be declared with a longer one; a publisher that names a longer one is given this time."""


class Liveness:
    """All times are in seconds, by the clock of the caller."""

    __slots__ = ("_join_timeout", "_least_silence", "heard", "paused", "silence", "since")

    def __init__(self, join_timeout: float, silence: float, now: float) -> None:
        self._join_timeout = join_timeout
        self._least_silence = silence
        self.silence = silence
        """Nothing heard for so long: the publisher is taken for gone."""
        self.paused = False
        """Whether the shell does not read, so that silence is not the publisher's fault."""
        self.heard = now
        """When anything came from the publisher."""
        self.since = now
        """When the present state began, or the answer that it awaits last came on."""

    def resume(self, now: float) -> None:
        """The shell reads again."""
        self.paused = False
        self.heard = self.since = now

    def expect_heartbeats(self, every: float) -> None:
        """The publisher is given the time of two heartbeats, where that is more than the settings give it."""
        self.silence = max(self._least_silence, 2 * min(every, LONGEST_HEARTBEAT))

    def missing(self, state: FollowerState, now: float) -> str | None:
        """What should have come by now, for the user; None while there is time."""
        if state in (FollowerState.GREETING, FollowerState.JOINING) and now - self.since > self._join_timeout:
            return f"no answer to the join within {self._join_timeout:g} s"
        if state in (FollowerState.LIVE, FollowerState.PULLING) and now - self.heard > self.silence:
            return f"the publisher was silent for {self.silence:g} s"
        if state is FollowerState.PULLING and now - self.since > self.silence:
            # It lives, but has given up the answer, as it may while this side was not reading.
            return "the history did not come on"
        return None

    def is_quiet(self, now: float) -> bool:
        """Whether it is time to look what the silence hides (Q11)."""
        return now - self.heard > self.silence * 2 / 3
