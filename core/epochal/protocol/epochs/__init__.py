"""Whole epochs for many readers of one filter: one subscription fills a ring, and each reader finds its place there.

A relay serves them over HTTP. Which outcome a reader gets next, and when it must read history itself, is decided here.

Sources: rules E15-E18, F18.
"""
