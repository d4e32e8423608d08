"""Model families behind one contract (`base.Model`). With `devices`, the only package that imports torch."""
