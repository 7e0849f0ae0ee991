"""What TorchRec's names stand for where only code that is written for TorchRec uses them."""
