"""The documentation site builds without a warning and loads nothing from elsewhere; the tutorial
and the notebook run.
"""
