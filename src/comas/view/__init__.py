"""Looking at a run or an evaluation in a browser: served from this machine, or as one file.

Reads the folder and nothing else; a page is built from documents, JSON objects by name, which are
the same in both forms. Leaves out: the terminal (`display`), what figures mean
(`training.metrics`).
"""
