"""DeepSeek-V4.1-Flash in numpy: formats, checkpoints, tokens, and the forward pass."""
