"""Collections under torch.fx and TorchScript."""
