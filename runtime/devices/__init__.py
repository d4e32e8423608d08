"""Devices behind one contract (`base.Device`). With `models`, the only package that imports torch."""
