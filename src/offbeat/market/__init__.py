"""The pricing market in continuous time: firms reprice on their own clocks and see rivals late.

Reading order: `demand` (who sells how much), `industry` (costs, profit flow), `clocks` (who reprices when), `quotes`
(what is seen late), `market` (all markets in lockstep: the interface learners and rules build on), `equilibrium` (Nash
and cartel, certified), `gain` (profit gain and its null values), `rules` (fixed policies), `diagnostics/`, `audit/`,
`learners/`.

Imports of offbeat: `eventtime`, `align` (learners), `errors`. Nothing is imported here, so that importing the room
costs nothing.
"""
