"""The CUDA sources, one folder a ladder; a package only so that wheels carry them."""
