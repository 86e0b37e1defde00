"""What a learnt pricing policy is, beyond its profit: tests with controls. `deviation` decides whether the word
collusion may be used.
"""
