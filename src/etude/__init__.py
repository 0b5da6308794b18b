"""Étude: train your own coding agent, from two CPU cores to many regions."""

__version__ = "0.1.0"
