"""What a plain DataLoader reads: its sampler and settings, where they are of a known kind."""

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from bitproof.data.errors import NotCarriedError


class OrderChangedWarning(UserWarning):
    """Samples come in another order from now on."""


def known_sampler(loader: DataLoader[Any]) -> SequentialSampler | RandomSampler | DistributedSampler[Any]:
    """Return the loader's sampler, where its order is known: sequential, random or distributed.

    Raises:
        NotCarriedError: data set, sampler or batch sampler are of another kind.

    """
    if isinstance(loader.dataset, IterableDataset):
        raise NotCarriedError(
            f"{type(loader.dataset).__name__} is iterable-style: it has no positions to go back to. Give it a state_dict "
            "and load_state_dict and use bitproof.data.carry(loader), or make it a map-style data set."
        )
    if type(loader.batch_sampler) is not BatchSampler:
        kind = type(loader.batch_sampler).__name__
        what = "batch_size=None" if loader.batch_sampler is None else f"a batch sampler of type {kind}"
        raise NotCarriedError(
            f"the DataLoader has {what}, whose order is not known and whose state is nowhere. "
            + (
                "Use batch_size= with a sequential, random or distributed sampler."
                if loader.batch_sampler is None
                else "Use bitproof.data.Loader(dataset, batch_sampler=…), or Loader.from_torch(loader): what the sampler "
                "draws changes once."
            )
        )
    sampler: Sampler[Any] = loader.batch_sampler.sampler  # type: ignore[assignment]
    if type(sampler) is RandomSampler and (sampler.replacement or sampler.num_samples != len(loader.dataset)):  # type: ignore[arg-type]
        raise NotCarriedError(
            f"RandomSampler(replacement={sampler.replacement}, num_samples={sampler.num_samples}) over "
            f"{len(loader.dataset)} samples draws some twice or not at all: its order is no permutation. "  # type: ignore[arg-type]
            "Use bitproof.data.Loader.from_torch(loader), which keeps the sampler; or shuffle=True; bitproof.data.Mixture draws "
            "by weight."
        )
    if type(sampler) not in {SequentialSampler, RandomSampler, DistributedSampler}:
        raise NotCarriedError(
            f"the DataLoader's sampler is a {type(sampler).__name__}, whose order is not known: expected "
            "SequentialSampler, RandomSampler or DistributedSampler. Use bitproof.data.Loader.from_torch(loader), which keeps the "
            "sampler and sets what it draws for each epoch. (For a subset there is also torch.utils.data.Subset, for weights "
            "bitproof.data.Mixture.)"
        )
    return sampler  # type: ignore[return-value]


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a `Loader` that reads what a plain DataLoader does.

    Raises:
        NotCarriedError: the data set is iterable-style, or the DataLoader does not read batches of indices.

    """
    settings: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    try:
        sampler = known_sampler(loader)
    except NotCarriedError:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise
        return settings | {"batch_sampler": loader.batch_sampler}
    settings |= {
        "batch_size": loader.batch_sampler.batch_size,  # type: ignore[union-attr]
        "drop_last": loader.batch_sampler.drop_last,  # type: ignore[union-attr]
        "shuffle": isinstance(sampler, RandomSampler),
    }
    if isinstance(sampler, DistributedSampler):
        settings |= {"rank": sampler.rank, "world_size": sampler.num_replicas, "shuffle": sampler.shuffle}
        settings["batch_size"] *= sampler.num_replicas
    return settings


def order_change(settings: dict[str, Any], loader: DataLoader[Any], seed: int) -> str | None:
    """Return how the order of samples differs from the plain DataLoader's, None where it does not.

    Args:
        settings: from `settings_of`.
        loader: the plain DataLoader.
        seed: of the new order.

    """
    if settings.get("shuffle"):
        return (
            f"samples come in another order than {type(known_sampler(loader)).__name__}'s, from seed {seed}. It changes once, now, "
            "and survives every resume from here on."
        )
    if (batch_sampler := settings.get("batch_sampler")) is not None:
        return (
            f"batches are those of {type(batch_sampler).__name__}, which draws from generators that are set for each epoch "
            f"from seed {seed}. Where it draws, its batches change once, now, and survive every resume from here on."
        )
    return None
