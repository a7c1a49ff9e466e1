"""Optimizers, whose state is known by parameter name, and the schedule of the learning rate.

May import config.
"""
