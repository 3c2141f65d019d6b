"""What one connection wants, what its publisher knows of that, and when it is time to join another channel.

Two ways lead to a channel that carries only what is wanted, and `push.initialFilter` of the stream says which. With
`firehose` everything is pushed at first, and each batch that comes may cause one step towards the filter
(`topics.subscriber_trie`). With `none` each hello names the whole filter. One that is too long for that is told step by
step as well, but before a channel is joined, and without waiting for batches: a first hello asks for nothing but a
welcome, and the next one gets the channel of all that was told since.

A channel that carries more than is wanted does no harm, because the rest is left out at this end. One that carries less
does: a join that is to bring new topics waits until the publisher knows that they are wanted.

Sources: rules N11, N12, F2-F6, F12; *Generalized subscription upstreaming* on the nanomsg mailing list.
"""

from dataclasses import dataclass
from math import inf

from epochal.protocol import messages as m
from epochal.protocol.subscriber.channel_change import as_prefixes
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.protocol.topics.requests import Confirm, Step
from epochal.protocol.topics.subscriber_trie import SubscriberTrie

FRESH = 30.0
"""Seconds after the last request for which a publisher still knows what it was told; it forgets after twice that."""
REPEATS = 2
"""How often a request is sent again before a join that waits for it goes on without (N12)."""
NOTHING: m.Prefixes = (), ()
"""No topic, in a hello whose channel is not joined."""


@dataclass(frozen=True, slots=True)
class FilterTimes:
    """In seconds."""

    settled: float = 1.0
    """How long a narrower filter must stay the same before its channel is joined."""
    between_changes: float = 5.0
    """The least time between two joins of other channels, except for new topics."""
    coarse_again: float = 60.0
    """How long a channel that carries more than is wanted is put up with, where the publisher had no other (F12)."""
    again: float = 1.0
    """How long a confirmation is waited for before the request is sent again (N8)."""


class UpstreamFilter:
    """The filter of one connection. `topics` are wanted, None for all.

    `whole`: the publisher is to know all of them before a channel is joined, by the hello if that can name them.
    """

    def __init__(self, topics: TopicFilter | None, times: FilterTimes, now: float, *, whole: bool) -> None:
        self.topics = topics
        self.joined: TopicFilter | None = topics
        """What was wanted at the last join, whose channel carries it; None for all."""
        self.stepping = False
        """Whether a batch may cause a step."""
        self._times = times
        self._whole = whole
        self.asks_nothing = False
        """Whether the last hello wanted nothing but a welcome: its channel is not the one to join."""
        self._can_filter: bool | None = None
        """Whether the publisher can send only what is wanted; None before it has said so."""
        self._refused = False
        """Whether the publisher has refused to take a filter; it is not asked again on this connection."""
        self._coarse = False
        self._unknown = False
        """Whether the publisher did not know what is wanted when it answered the last hello."""
        self._follows_unknown = False
        """The same of the join whose channel is followed."""
        self._joined_at = now
        self._may_change_at = now
        """When the channel may be changed again."""
        self._changed_at = now
        """When `topics`, or what the publisher knows of them, last changed."""
        self._changed = False
        """Whether that was after the last join."""
        self.widens = False
        """Whether new topics wait for a join that is over."""
        self._view = 0
        """The number of the publisher's view; a higher one begins anew, with everything."""
        self._trie: SubscriberTrie | None = None
        """None where nothing is told step by step."""
        self._joined_view = EVERYTHING
        """What the publisher's view was at the last join, as far as it was confirmed."""
        self._asked_at = inf
        """When a request was sent last for this view; in the future before the first one."""
        self._repeats = 0
        """How often what is under way was sent again since the last confirmation."""

    @property
    def _wanted(self) -> TopicFilter:
        return EVERYTHING if self.topics is None else self.topics

    # ---- what is wanted ----

    def want(self, topics: TopicFilter | None, now: float, *, widens: bool) -> None:
        """Other topics are wanted; `widens` if some are new, so that a join must bring them."""
        self.topics, self._changed_at, self._changed = topics, now, True
        self.widens = self.widens or widens
        if self._trie is None or self._is_stale(now) or self._is_named:
            self._begin_view()
        else:
            self._trie.change(self._wanted)
            self._set_stepping()

    @property
    def _is_named(self) -> bool:
        """Whether a hello says all."""
        return self.topics is None or (self._whole and as_prefixes(self.topics) is not None)

    def _is_stale(self, now: float) -> bool:
        """Whether the publisher may have forgotten what it was told."""
        return self._trie is not None and now - self._asked_at > FRESH

    def _begin_view(self) -> None:
        """A client that joins is sent everything, until the publisher is told otherwise (N15)."""
        self._view += self._trie is not None
        steps = self._can_filter and not self._refused and not self._is_named
        self._trie = SubscriberTrie(self._wanted, {b"": True}) if steps else None
        self._asked_at, self._repeats = inf, 0
        self._set_stepping()

    def _set_stepping(self) -> None:
        self.stepping = self._trie is not None and not self._trie.converged and not self._whole

    # ---- joining ----

    @property
    def ready_for_hello(self) -> bool:
        """Whether a hello gets the right channel: it can say all, or nothing is left to be told, or can be."""
        if not self._whole or self._refused or self._is_named:
            return True
        return self._can_filter is False if self._trie is None else self._trie.converged

    def hello(self, now: float, *, changes: bool) -> tuple[m.Prefixes | None, int]:
        """What a hello says of the filter, so that its channel carries all that is wanted: its prefixes, and a view.

        `changes`: it is for another channel than the one that is followed. Afterwards `asks_nothing` says whether it is
        only for a welcome, after which all that is wanted must be told first.
        """
        named = as_prefixes(self.topics) if self._whole and not self._refused else None
        if self._is_stale(now) and self._trie is not None and self._trie.converged:
            named = as_prefixes(self.topics)  # the publisher has had it, and may have forgotten
        if named is None and (self._is_stale(now) or not (self._whole or self._covers)):
            self._begin_view()
        self.asks_nothing = not (changes or self.ready_for_hello)
        if self.asks_nothing:
            # A relay would have to ask for everything if the hello did not say so; and everything waits for a join.
            named, self.widens = NOTHING, True
        self.joined, self._joined_at = self.topics, now
        if changes:
            self._may_change_at = now + self._times.between_changes
        self._changed = False
        self._joined_view = EVERYTHING if self._trie is None else self._trie.publisher
        known = named is not None or (self._trie is not None and self._trie.converged)
        self._unknown = self.topics is not None and not known
        if not changes:
            self._follows_unknown = self._unknown
        return named, self._view

    def begins(self) -> None:
        """A join is over: from here on its topics come."""
        self.widens = False
        self._follows_unknown = self._unknown

    def welcomed(self, welcome: m.Welcome) -> None:
        """The publisher says what it can do, and whether its channel carries more than was asked for."""
        self._coarse = welcome.coarse
        if not self._can_filter:
            self._can_filter = m.FILTER_CHANNELS in welcome.features
            self._begin_view()

    @property
    def firehose(self) -> bool:
        """Whether the publisher did not know what is wanted when it named the channel that is followed."""
        return self.topics is not None and (self._follows_unknown or not self._can_filter)

    @property
    def _covers(self) -> bool:
        """Whether a join now certainly gets a channel with all that is wanted."""
        return self._trie is None or self._trie.sent_for_sure.covers(self._wanted)

    def may_join(self, now: float) -> bool:
        """Whether it is time to join again, and the publisher has been told what it must know for that."""
        if not (self.ready_for_hello and self._is_due(now)):
            return False
        if self._whole and self._is_stale(now):
            self._begin_view()  # it must be told again
        return self.ready_for_hello

    def _is_due(self, now: float) -> bool:
        """Whether a join is due: for new topics, a narrower channel, or one of its own (F12)."""
        if self.widens:
            return self._covers
        if not self._can_filter or now < self._may_change_at:
            return False
        if self._coarse and now - self._joined_at >= self._times.coarse_again:
            return True
        if not self._changed:
            return False
        over = self._trie is not None and self._trie.converged
        if not over and now - self._changed_at < self._times.settled:
            return False
        return self.topics != self.joined if self._trie is None else self._trie.publisher != self._joined_view

    # ---- step by step ----

    def batch(self, topic: bytes) -> None:
        """A batch has been pushed: one step may be due (F2)."""
        if self._trie is not None:
            self._trie.batch(topic)

    def confirmed(self, confirm: m.Confirm, now: float) -> None:
        """The publisher has carried out a step."""
        if self._trie is not None and confirm.view == self._view:
            self._trie.confirm(Confirm(confirm.number, Step(confirm.step), confirm.prefix))
            self._changed_at, self._changed, self._repeats = now, True, 0
            self._set_stepping()

    def refused(self) -> bool:
        """The publisher takes no filter: it sends everything, and what is not wanted is left out here (N12).

        Returns whether it had been asked to; then it is not asked again, and a join follows.
        """
        if self._refused or (self._trie is None and not (self._whole and self.topics is not None)):
            return False
        self._refused = self.widens = True
        self._begin_view()
        return True

    def take(self, segment: str, now: float) -> list[m.Filter]:
        """The steps to be sent now. Where a join waits for them, and they are not answered, it is as if refused."""
        if self._trie is not None and self._is_stale(now) and not self._trie.converged:
            self._begin_view()  # one that was forgotten would lack the steps before these
        if self._trie is None:
            return []
        if self._trie.waits and now - self._asked_at >= self._times.again:
            if self._whole and self.widens and self._repeats >= REPEATS:
                self.refused()
                return []
            self._trie.again()
            self._repeats += 1
        if self._whole:
            self._trie.hurry()
        steps = self._trie.take()
        if steps:
            self._asked_at = now
        return [m.Filter(segment, self._view, each.number, each.oldest, each.step, each.prefix) for each in steps]
