"""How answers are read and checked: one file per form, shared by the tasks; the same in training
and in evaluation.
"""
