"""The market through other people's interfaces: PettingZoo (AEC and parallel) and Gymnasium (vector). Needs the extra
`market`.
"""
