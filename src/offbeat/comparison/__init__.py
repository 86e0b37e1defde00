"""`offbeat compare`: the same task, model, seed and cores under several schedules, one after the other."""
