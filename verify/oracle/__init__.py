"""Exact results in float64, each with a bound on what a correct runtime may differ from it."""
