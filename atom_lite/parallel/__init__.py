"""Ranks, the links between them, and the cores they run on."""
