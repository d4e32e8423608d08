"""Cotenant: many retrieval models served from one process on one shared device."""

__version__ = "0.1.0"
