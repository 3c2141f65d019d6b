"""The life of a follower: its states, and what leads from one to another.

`Follower` looks every change of its state up in `FOLLOWER_TRANSITIONS`. docs/protocol.md draws this table.

Sources: rules S8, E26, F8; Push-Pull Publish-Subscribe; docs/protocol.md (Joining a segment).
"""

from enum import StrEnum

from epochal.protocol.transitions import Transitions


class FollowerState(StrEnum):
    """Each docstring says what was sent to get there, and what is awaited there."""

    GREETING = "greeting"
    """`Hello` with a fresh subscription id (E26); `Welcome` is awaited."""
    NAMING = "naming"
    """`Filter`, step by step: the publisher must know what is wanted before a channel is joined."""
    JOINING = "joining"
    """Subscriptions to the channel and to the id; `Snapshot` is awaited."""
    PULLING = "pulling"
    """`Since`; its answer is awaited."""
    LIVE = "live"
    """Nothing; pushes are followed. Another channel may be joined meanwhile, by a `Hello` that replaces."""
    WAITING = "waiting"
    """Nothing; pushes are not followed, and the next pull is not due yet."""
    BROKEN = "broken"
    """Nothing; `Broke` was reported, and this follower does nothing any more."""


class FollowerEvent(StrEnum):
    """What happens to a follower that changes its state, or begins the same state again."""

    # ---- joining ----
    WELCOMED_TO_JOIN = "`Welcome`, and pushes are followed"
    WELCOMED_TO_NAME = "`Welcome`, and the publisher must know first what is wanted"
    WELCOMED_TO_PULL = "`Welcome`, and pushes are not followed"
    NAMED = "the publisher knows what is wanted, or does not take filters"
    FILTER_REFUSED = "the filter is refused: the next `Hello` asks for everything"
    JOINED = "`Snapshot`, and nothing before it is missing"
    JOINED_AHEAD = "`Snapshot`, and there is more before it"

    # ---- pulling ----
    OVERTAKEN = "retention overtook the answer: it is requested again after its last event"
    PULLED = "the answer is over, and pushes are followed"
    PULLED_TO_WAIT = "the answer is over, and pushes are not followed"
    PULLED_TO_JOIN = "the answer is over, and pushes are to be followed again"
    PUSHES_FAILED = "the answer to a look has events that were not pushed (Q12)"
    LOOKED_TOO_LATE = "what a look requests is no longer retained"
    GAP_SKIPPED = "what is missing is no longer retained; the snapshot says where to go on (E17)"
    GAP_PULLED = "the same without a snapshot: all that is retained is requested"

    # ---- live ----
    GAP_SEEN = "an event that is not directly after the last (Q10)"
    DAMAGE_SEEN = "an event whose payload is damaged"
    TAIL_LOST = "a heartbeat names a later event than the last"
    QUIET = "nothing heard for two thirds of the silence (Q11)"
    CHANGE_BEGUN = "another channel is joined while this one is followed (F8)"
    CHANGED = "`Snapshot` of the new channel, and all of the old one has come"
    CHANGED_WITH_LOSS = "`Snapshot` of the new channel, and something of the old one has not come"
    CHANGE_FAILED = "the new channel is refused, late, behind this one, or brings too much before its `Snapshot`"

    # ---- from the subscriber, or of time ----
    TOPICS_ADDED = "topics are wanted that were not before"
    TOPICS_DUE = "while nothing is pushed, the next pull needs another filter"
    POLL_DUE = "`settings.poll` seconds have passed (Q7)"
    PUSHES_LEFT = "pushes are not followed any more"
    PUSHES_WANTED = "pushes are followed again"

    # ---- the end ----
    SILENCE = "the publisher is silent, or its answer does not come on"
    REFUSED = "the publisher refuses the request or the id"
    RULE_BROKEN = "the publisher breaks a rule of the protocol, or its history arrives damaged"
    RUN_ENDED = "the relay has lost its place, or follows another incarnation"
    UNFIT = "the publisher has been replaced, or the relay may not be followed"
    TRUNCATED = "what was requested is no longer retained"
    NOT_THERE = "the event to begin after is not there yet"


_S, _E = FollowerState, FollowerEvent
_BREAKS = {_E.REFUSED: _S.BROKEN, _E.RULE_BROKEN: _S.BROKEN}
"""Wherever a message can come from the publisher, it can be one of these."""

FOLLOWER_TRANSITIONS = Transitions(
    _S.GREETING,
    {
        _S.GREETING: {
            _E.WELCOMED_TO_JOIN: _S.JOINING,
            _E.WELCOMED_TO_NAME: _S.NAMING,
            _E.WELCOMED_TO_PULL: _S.PULLING,
            _E.FILTER_REFUSED: _S.GREETING,
            _E.TOPICS_ADDED: _S.GREETING,
            _E.SILENCE: _S.BROKEN,
            _E.RUN_ENDED: _S.BROKEN,
            _E.UNFIT: _S.BROKEN,
            _E.NOT_THERE: _S.BROKEN,
            **_BREAKS,
        },
        _S.NAMING: {
            _E.NAMED: _S.GREETING,
            _E.FILTER_REFUSED: _S.GREETING,
            _E.PUSHES_LEFT: _S.GREETING,
            _E.RUN_ENDED: _S.BROKEN,
            **_BREAKS,
        },
        _S.JOINING: {
            _E.JOINED: _S.LIVE,
            _E.JOINED_AHEAD: _S.PULLING,
            _E.TOPICS_ADDED: _S.GREETING,
            _E.PUSHES_LEFT: _S.PULLING,
            _E.SILENCE: _S.BROKEN,
            _E.RUN_ENDED: _S.BROKEN,
            _E.NOT_THERE: _S.BROKEN,
            **_BREAKS,
        },
        _S.PULLING: {
            _E.PULLED: _S.LIVE,
            _E.PULLED_TO_WAIT: _S.WAITING,
            _E.PULLED_TO_JOIN: _S.GREETING,
            _E.PUSHES_FAILED: _S.GREETING,
            _E.LOOKED_TOO_LATE: _S.GREETING,
            _E.OVERTAKEN: _S.PULLING,
            _E.GAP_SKIPPED: _S.LIVE,
            _E.GAP_PULLED: _S.PULLING,
            _E.TOPICS_ADDED: _S.GREETING,
            _E.TRUNCATED: _S.BROKEN,
            _E.SILENCE: _S.BROKEN,
            _E.RUN_ENDED: _S.BROKEN,
            **_BREAKS,
        },
        _S.LIVE: {
            _E.GAP_SEEN: _S.GREETING,
            _E.DAMAGE_SEEN: _S.GREETING,
            _E.TAIL_LOST: _S.GREETING,
            _E.QUIET: _S.PULLING,
            _E.CHANGE_BEGUN: _S.LIVE,
            _E.CHANGED: _S.LIVE,
            _E.CHANGED_WITH_LOSS: _S.PULLING,
            _E.CHANGE_FAILED: _S.GREETING,
            _E.PUSHES_LEFT: _S.WAITING,
            _E.SILENCE: _S.BROKEN,
            _E.RUN_ENDED: _S.BROKEN,
            **_BREAKS,
        },
        _S.WAITING: {
            _E.POLL_DUE: _S.PULLING,
            _E.TOPICS_ADDED: _S.GREETING,
            _E.TOPICS_DUE: _S.GREETING,
            _E.PUSHES_WANTED: _S.GREETING,
            **_BREAKS,
        },
    },
)
