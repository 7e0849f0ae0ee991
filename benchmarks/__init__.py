"""Measurements that anyone can repeat; nothing here is imported by the packages."""
