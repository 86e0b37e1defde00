"""The simulator: the same loop, scheduler and schedules as a live run, with priced service times on a virtual clock."""
