"""Reports on predictions as pages of HTML or markdown, and model cards.

* ``pages``: reports on label vectors and on automatic choices, and the writers; ``sequences``: reports on
  tags of sequences.
"""
