"""Which process makes which passes of an update. Knows no model and no loss; `ranks` knows no micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offbeat.learner.batches import Sample
from offbeat.learner.layout import MicroBatch
from offbeat.learner.ranks import Ranks
from offbeat.learner.tally import Update


def most_tokens(most: int, samples: Sequence[Sample], ranks: Ranks) -> int:
    """Tokens of a micro-batch at most, so that there are some for everybody."""
    if ranks.count == 1:
        return most
    whole = sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples)
    return min(most, -(-whole // (2 * ranks.count)) or 1)


def my_passes(
    batches: Sequence[MicroBatch], ranks: Ranks, together: bool, update: Update
) -> Iterator[tuple[MicroBatch, bool]]:
    """This process's micro-batches, and whether they count; those of others are left out, but have their place in
    `update`. Where all must make their passes together, who has none left makes the smallest once more, uncounted."""
    sizes = [batch.padded_tokens for batch in batches]
    if not together:
        for batch, mine in zip(batches, ranks.mine(sizes), strict=True):
            if mine:
                yield batch, True
            else:
                update.leave_out(batch.samples)
        return
    for round_ in ranks.together(sizes):
        for rank, index in enumerate(round_):
            if rank == ranks.rank:
                yield (batches[sizes.index(min(sizes))], False) if index is None else (batches[index], True)
            elif index is not None:
                update.leave_out(batches[index].samples)
