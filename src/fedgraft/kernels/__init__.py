"""Native kernels for the small convolutional networks of this field, with plain PyTorch wherever they do not apply."""

from fedgraft.kernels.fusion import Choice, Report, accelerate, available, choose, describe

__all__ = ["Choice", "Report", "accelerate", "available", "choose", "describe"]
