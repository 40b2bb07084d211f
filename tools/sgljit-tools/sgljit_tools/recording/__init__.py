"""What do the ops of a family ask to be built? Their host parts are asked, on tensors without memory."""
