"""Epochal."""
