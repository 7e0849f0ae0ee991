"""The words that options of an export take; without torch."""

#: How graphs are written.
GRAPH_FORMATS = ("torchscript", "pt2", "both")
#: Types of the dense layers, by torch's names.
DENSE_DTYPE_NAMES = ("float32", "bfloat16")
#: The type of linear layers that stands for the fastest within a bound.
AUTO = "auto"
