"""Dumb algebra: branches, couplings and pairs, and the models built from them. Nothing here knows of growth.

May import config, errors and seeding.
"""
