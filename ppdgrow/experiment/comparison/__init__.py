"""Runs held against each other: their histories, curves, spikes, criteria, and the table that shows them."""
