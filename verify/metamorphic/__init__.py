"""Metamorphic relations: what a runtime's outputs for changed inputs have to be, given its own outputs before.

No other party is needed: a runtime is held against itself (NUMERICS.md section 6, docs/relations.md).
"""
