"""The catalog from a client: calls over HTTP, what it answers, and where the publishers of a stream are."""
