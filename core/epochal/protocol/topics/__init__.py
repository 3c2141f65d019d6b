"""Topics: what a subscriber wants, and how a publisher learns it while neither waits for the other.

`filter` is the normal form of a wish, with its algebra. `subscriber_trie` and `publisher_trie` are the two ends of one
connection, which exchange `requests` until the publisher's end is the subscriber's filter.

Sources: *Generalized subscription upstreaming* on the nanomsg mailing list; rules N1-N20, F1-F5.
"""
