"""The constants of SplitMix64, shared by ``nowait.core.randomness`` and its compiled version."""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
TICKET_STRIDE = (GOLDEN << 32) & MASK
UNIFORMS, NORMALS, PARTS = (1 << 32) - 1, (1 << 32) - 2, 1 << 31
"""Draws of a ticket that are used as keys themselves, so that indices, uniforms, normals and parts are independent."""
