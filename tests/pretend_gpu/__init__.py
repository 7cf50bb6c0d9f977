"""A pretend GPU: its tensors say that they are on a device, are computed on the CPU, and keep a GPU's rules.

On it an operation on tensors, or with a generator, of two devices raises, and whatever would make the host wait for the
device is counted, so that a machine without a GPU can tell whether a method is right on one, and whether it would keep
it busy. What it cannot tell: how fast anything is, and the bits that another arithmetic gives.
"""
