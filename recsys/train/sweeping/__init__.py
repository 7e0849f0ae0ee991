"""Sweeps: trainings over values of options, one after the other, with a table and a page of their metrics."""
