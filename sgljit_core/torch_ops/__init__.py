"""The torch.library ops that declarations become."""
