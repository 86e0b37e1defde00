"""The commands of rooms that bring their own: options in, one result out. Heavy imports happen inside functions."""
