"""The topics that one connection wants, what its publisher knows of them, and when to join another channel.

A client gets a channel that carries only what it wants in one of two ways. The stream's `push.initialFilter` says
which. With `firehose` everything is pushed at first, and each batch that comes may cause one step towards the filter
(`topics.subscriber_trie`). With `none` each hello names the whole filter. A filter that is too long for a hello is sent
step by step as well, but before a channel is joined and without waiting for batches: a first hello requests only a
welcome, and the next one gets the channel of everything that was sent since.

A channel that carries more than is wanted does no harm, because the receiver leaves the rest out. A channel that
carries less would lose records. So a join for new topics waits until the publisher knows that they are wanted.

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
"""Seconds after the last step for which a publisher certainly remembers a view; it forgets one after twice that."""
REPEATS = 2
"""How often a step is sent again before a join that waits for its confirmation asks for everything instead (N12)."""
NOTHING: m.Prefixes = (), ()
"""The filter of a hello whose channel is not joined: no topic."""


@dataclass(frozen=True, slots=True)
class FilterTimes:
    """All times are in seconds."""

    settled: float = 1.0
    """How long a narrower filter must stay the same before its channel is joined."""
    between_changes: float = 5.0
    """The least time between two joins of other channels, except for new topics."""
    coarse_again: float = 60.0
    """How long to stay on a channel that carries more than was asked for before the next hello (F12)."""
    again: float = 1.0
    """How long to wait for a confirmation before a step is sent again (N8)."""


class UpstreamFilter:
    """The filter of one connection. `topics` are wanted, None for all.

    With `whole` the publisher must know all of them before a channel is joined: from the hello, if they fit into it.
    """

    def __init__(self, topics: TopicFilter | None, times: FilterTimes, now: float, *, whole: bool) -> None:
        self.topics = topics
        self.joined: TopicFilter | None = topics
        """The topics of the last join, all of which its channel carries; None for all."""
        self.stepping = False
        """Whether a batch may cause a step."""
        self._times = times
        self._whole = whole
        self.asks_nothing = False
        """Whether the last hello requested only a welcome: its channel is not to be joined."""
        self._can_filter: bool | None = None
        """Whether the publisher has channels by filter; None before its first welcome."""
        self._refused = False
        """Whether the publisher has refused a filter; it gets no other one on this connection."""
        self._coarse = False
        """Whether the publisher said that its channel carries more than was asked for."""
        self._unknown = False
        """Whether the publisher did not know the wanted topics when it answered the last hello."""
        self._follows_unknown = False
        """The same for the hello whose channel is followed."""
        self._joined_at = now
        """When the last hello was sent."""
        self._may_change_at = now
        """When the channel may be changed again."""
        self._changed_at = now
        """When `topics`, or what the publisher knows of them, last changed."""
        self._changed = False
        """Whether that was after the last hello."""
        self.widens = False
        """Whether new topics are wanted that no completed join has brought yet."""
        self._view = 0
        """The number of the publisher's view of the filter. A view with a higher number begins with everything."""
        self._trie: SubscriberTrie | None = None
        """The steps towards the filter; None if no steps are sent."""
        self._joined_view = EVERYTHING
        """The confirmed part of the publisher's view at the last hello."""
        self._asked_at = inf
        """When the last step of this view was sent; infinite before the first."""
        self._repeats = 0
        """How often the steps under way were sent again since the last confirmation."""

    @property
    def _wanted(self) -> TopicFilter:
        return EVERYTHING if self.topics is None else self.topics

    # ---- what is wanted ----

    def want(self, topics: TopicFilter | None, now: float, *, widens: bool) -> None:
        """Other topics are wanted. With `widens` some are new, and a join must bring them."""
        self.topics, self._changed_at, self._changed = topics, now, True
        self.widens = self.widens or widens
        if self._trie is None or self._is_stale(now) or self._is_named:
            self._begin_view()
        else:
            self._trie.change(self._wanted)
            self._set_stepping()

    @property
    def _is_named(self) -> bool:
        """Whether a hello names all that is wanted."""
        return self.topics is None or (self._whole and as_prefixes(self.topics) is not None)

    def _is_stale(self, now: float) -> bool:
        """Whether the publisher may have forgotten the view."""
        return self._trie is not None and now - self._asked_at > FRESH

    def _begin_view(self) -> None:
        """Begin a new view: its publisher sends everything until steps say otherwise (N15)."""
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
        """Whether a hello gets the right channel.

        It does if it can name the whole filter, if all steps are confirmed, or if no steps can be sent at all.
        """
        if not self._whole or self._refused or self._is_named:
            return True
        return self._can_filter is False if self._trie is None else self._trie.converged

    def hello(self, now: float, *, changes: bool) -> tuple[m.Prefixes | None, int]:
        """The prefixes and the view that a hello names, so that its channel carries all that is wanted.

        With `changes` it is for another channel than the one that is followed. Afterwards `asks_nothing` says whether
        it requests only a welcome, so that the filter must be sent before the next hello.
        """
        named = as_prefixes(self.topics) if self._whole and not self._refused else None
        if self._is_stale(now) and self._trie is not None and self._trie.converged:
            named = as_prefixes(self.topics)  # the publisher may have forgotten the view, but a hello can name it all
        if named is None and (self._is_stale(now) or not (self._whole or self._covers)):
            # The view could lack wanted topics, or be forgotten. A new one begins with everything, and lacks nothing.
            self._begin_view()
        self.asks_nothing = not (changes or self.ready_for_hello)
        if self.asks_nothing:
            # Without this a relay would ask its publisher for everything. All topics wait for the next join, as if new.
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
        """A join is complete: its topics come from here on."""
        self.widens = False
        self._follows_unknown = self._unknown

    def welcomed(self, welcome: m.Welcome) -> None:
        """The publisher names its features, and whether its channel carries more than was asked for."""
        self._coarse = welcome.coarse
        if not self._can_filter:
            self._can_filter = m.FILTER_CHANNELS in welcome.features
            self._begin_view()

    @property
    def firehose(self) -> bool:
        """Whether the publisher did not know the wanted topics when it named the channel that is followed."""
        return self.topics is not None and (self._follows_unknown or not self._can_filter)

    @property
    def _covers(self) -> bool:
        """Whether a join now certainly gets a channel with all that is wanted.

        Steps under way may be carried out or not. `sent_for_sure` is what the publisher sends in either case.
        """
        return self._trie is None or self._trie.sent_for_sure.covers(self._wanted)

    def may_join(self, now: float) -> bool:
        """Whether it is time to join again, and the publisher knows all that it must know for that."""
        if not (self.ready_for_hello and self._is_due(now)):
            return False
        if self._whole and self._is_stale(now):
            self._begin_view()  # all steps must be sent again
        return self.ready_for_hello

    def _is_due(self, now: float) -> bool:
        """Whether a join is due: for new topics, a narrower channel, or a channel for just this filter (F12)."""
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
        """The publisher does not take the filter: it sends everything, and the receiver leaves the rest out (N12).

        Returns whether a filter may have been sent. Then no other one is sent on this connection, and a join follows.
        """
        if self._refused or (self._trie is None and not (self._whole and self.topics is not None)):
            return False
        self._refused = self.widens = True
        self._begin_view()
        return True

    def take(self, segment: str, now: float) -> list[m.Filter]:
        """The steps to send now. If a join waits for them and no answer comes, they count as refused."""
        if self._trie is not None and self._is_stale(now) and not self._trie.converged:
            self._begin_view()  # a view that was forgotten would lack the earlier steps
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
