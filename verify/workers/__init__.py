"""Processes beside this one: where a runtime may crash, hang or be timed without taking the run along."""
