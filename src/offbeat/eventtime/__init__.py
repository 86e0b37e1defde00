"""Time and chance, shared by every world. Imports nothing of offbeat."""
