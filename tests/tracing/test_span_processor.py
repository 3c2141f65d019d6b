"""The queue before a collector: bounded in memory and in time, quiet after a failure, and its own after a fork."""

import os
import threading

import pytest
from opentelemetry.sdk.trace import TracerProvider

from epochal.otel.span_processor import Sender, SendLimits, Sent


class Collector:
    """Answers as `answer` says, once `gate` is open."""

    def __init__(self):
        self.answer, self.names, self.tries, self.gate = Sent(True), [], 0, threading.Event()
        self.gate.set()

    def spans(self, spans):
        self.tries += 1
        self.gate.wait()
        if self.answer.well:
            self.names += [span.name for span in spans]
        return self.answer

    def metrics(self):
        return Sent(True)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.gate.set()


def spans(sender, *names):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(sender)
    for name in names:
        provider.get_tracer("tests").start_span(name).end()


def test_a_flush_sends_all_in_order(collector):
    sender = Sender(collector, SendLimits(batch=2))
    spans(sender, *"abcde")
    assert sender.flush()
    assert collector.names == list("abcde")


def test_what_the_queue_cannot_take_is_counted(collector):
    collector.gate.clear()
    sender = Sender(collector, SendLimits(queue=3, delay=60.0))
    spans(sender, *"abcde")
    assert sender.dropped == 2
    collector.gate.set()
    assert sender.flush()
    assert collector.names == list("abc")


def test_after_a_failure_nothing_is_tried_for_a_while_and_nothing_is_lost(collector, caplog):
    clock = Clock()
    sender = Sender(collector, SendLimits(), clock=clock)
    collector.answer = Sent(False, "it is away", again=True)
    spans(sender, "a")
    assert not sender.flush()
    spans(sender, "b")
    assert not sender.flush()
    assert collector.tries == 1
    clock.now += 31.0
    assert not sender.flush()
    assert (collector.tries, sender.dropped) == (2, 0)
    assert len(caplog.records) == 1, "one line a failure, however long it lasts"
    clock.now += 31.0
    collector.answer = Sent(True)
    assert sender.flush()
    assert collector.names == ["a", "b"]


def test_what_is_refused_for_good_is_dropped_and_counted(collector):
    collector.answer = Sent(False, "it answered 400")
    sender = Sender(collector)
    spans(sender, "a", "b")
    assert not sender.flush()
    assert sender.dropped == 2


def test_a_flush_ends_in_time_when_the_collector_does_not(collector):
    collector.gate.clear()
    sender = Sender(collector)
    spans(sender, "a")
    assert not sender.flush(0.05)
    assert not sender.flush(60.0), "the second one must not wait at all"


def test_unsampled_spans_are_not_kept(collector):
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    sender = Sender(collector)
    provider = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(sender)
    provider.get_tracer("tests").start_span("a").end()
    assert sender.flush()
    assert collector.tries == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork beside threads, which is tested
def test_a_forked_child_sends_its_own_spans_and_not_its_parents(collector):
    collector.gate.clear()
    sender = Sender(collector, SendLimits(delay=60.0))
    spans(sender, "of the parent")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        collector.gate.set()
        spans(sender, "of the child")
        sent = sender.flush()
        os.write(write, f"{sent} {collector.names}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert said.read() == "True ['of the child']"
    os.waitpid(child, 0)
    collector.gate.set()
    assert sender.flush()
    assert collector.names == ["of the parent"]
