"""Artifacts in object stores: fetched into a cache of this machine, and uploaded."""
