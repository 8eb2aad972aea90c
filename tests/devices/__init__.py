"""The library's device code on machines without a device: see :mod:`devices.accelerator`."""
