"""For training loops of any kind: which rows a training changes, and servers that follow it."""

from recsys.training.touched import TouchedRows as TouchedRows
