"""The catalog's interface as values: what is asked of it and what it answers, each noun once for client and service."""
