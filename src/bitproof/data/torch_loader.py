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
            f"the DataLoader has {what}, whose order is not known and whose state is nowhere. Use batch_size= with a "
            "sequential, random or distributed sampler, or torchdata's StatefulDataLoader with a batch sampler that has "
            "state_dict and load_state_dict."
        )
    sampler: Sampler[Any] = loader.batch_sampler.sampler  # type: ignore[assignment]
    if type(sampler) is RandomSampler and (sampler.replacement or sampler.num_samples != len(loader.dataset)):  # type: ignore[arg-type]
        raise NotCarriedError(
            f"RandomSampler(replacement={sampler.replacement}, num_samples={sampler.num_samples}) over "
            f"{len(loader.dataset)} samples draws some twice or not at all: its order is no permutation. "  # type: ignore[arg-type]
            "Use shuffle=True; bitproof.data.Mixture draws by weight."
        )
    if type(sampler) not in {SequentialSampler, RandomSampler, DistributedSampler}:
        raise NotCarriedError(
            f"the DataLoader's sampler is a {type(sampler).__name__}, whose order is not known: expected "
            "SequentialSampler, RandomSampler or DistributedSampler. For a subset use torch.utils.data.Subset, for "
            "weights bitproof.data.Mixture, for your own order torchdata's StatefulDataLoader and a sampler with "
            "state_dict and load_state_dict."
        )
    return sampler  # type: ignore[return-value]


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a `Loader` that reads what a plain DataLoader does.

    Raises:
        NotCarriedError: see `known_sampler`.

    """
    sampler = known_sampler(loader)
    settings: dict[str, Any] = {
        "batch_size": loader.batch_sampler.batch_size,  # type: ignore[union-attr]
        "drop_last": loader.batch_sampler.drop_last,  # type: ignore[union-attr]
        "shuffle": isinstance(sampler, RandomSampler),
        "collate_fn": loader.collate_fn,
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    if isinstance(sampler, DistributedSampler):
        settings |= {"rank": sampler.rank, "world_size": sampler.num_replicas, "shuffle": sampler.shuffle}
        settings["batch_size"] *= sampler.num_replicas
    return settings
