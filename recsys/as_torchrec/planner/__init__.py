"""The planner's parts by TorchRec's names, for code that gives or subclasses them."""
