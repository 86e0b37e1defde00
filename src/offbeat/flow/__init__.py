"""Who runs when: the pure scheduler. Events and `now` in, commands out; no clock, torch, thread or file."""
