"""`offbeat study`: claims about stability measured at preset-model scale, many short runs on one engine and learner.

A study is a grid of cells; a cell is one run at exactly known staleness, in one process with one thread, fixed by its
seed. Finished cells are kept, so an interrupted study goes on. Importing this package loads no torch.
"""
