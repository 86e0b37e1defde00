"""Learners of prices, one file an algorithm. Nothing is imported here, so that importing the room costs nothing.

Two kinds. Tabular Q-learning in the repeated game on a price grid runs as compiled sessions: `sessions`,
`sessions_kernel`, `strategies`. The others learn in the event-driven market, all runs and cells stacked in one
batch of tensors: `training` is the loop; `learner`, `replay`, `networks`, `chance`, `wandering`, `alignment` the
parts; `ddpg`, `td3`, `sac`, `dqn`, `ppo`, `qlearning` the algorithms; `parts`, `checkpoint`, `runfile`, `policies`,
`outcome` a run on disk.
"""
