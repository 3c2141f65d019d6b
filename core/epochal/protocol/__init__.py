"""The protocol: everything that Epochal decides, as state machines without I/O, clock or random numbers.

A machine takes messages and the time, and gives back effects, which a shell with sockets carries out. So every order
of messages, every loss and every crash can be tried in one process, from a seed.

- `frontier`: which times can still come. A frontier is a set of times, none before another; it only moves forward.
- `writer`: one session of one writer at all segments. It gives up no time before its appends there are acknowledged.
- `publisher`: one segment. It logs what writers send, and derives the frontier from what they hold.
- `log`: the events of a segment, and the state that readers get in place of those that were removed.
- `subscriber`: follows segments, joins their frontiers, and hands out epochs whole or says that they are aborted.
- `relay`: a subscriber upstream and a publisher downstream, with the publisher's own numbers.
- `epochs`: the newest outcomes of a subscription, kept for many readers, each of which finds its place there.
- `topics`: which records a subscriber wants, kept at the sender.
- `messages`, `wire`: what they say to each other, as values and as bytes.
"""
