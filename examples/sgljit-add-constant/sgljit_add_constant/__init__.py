"""A kernel family for sgljit: add a constant to an int32 tensor."""
