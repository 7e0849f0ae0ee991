"""Operators where what is expanded from contexts meets rows."""
