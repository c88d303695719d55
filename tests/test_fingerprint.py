"""Digests of known tensors keep their values; layout, dtype and device change nothing but what they should."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from xxhash import xxh3_64_intdigest

from bitproof import fingerprint
from bitproof.fingerprint import (
    ABSENT,
    combine,
    digest_and_sketch,
    digest_bytes,
    digest_on_device,
    digest_rows,
    digest_tensor,
    digest_text,
)

COUNT = torch.arange(12)
GOLDEN: dict[str, tuple[torch.Tensor, int]] = {
    "float64": (COUNT.to(torch.float64), 0x251E2351F04F17E9),
    "float32": (COUNT.to(torch.float32), 0x8FA0D089B455C444),
    "float16": (COUNT.to(torch.float16), 0xCF989B0C183ECC4F),
    "bfloat16": (COUNT.to(torch.bfloat16), 0x7EC78A15C122DA16),
    "float8_e4m3fn": (COUNT.to(torch.float8_e4m3fn), 0x65CECAD0C054F5F5),
    "float8_e5m2": (COUNT.to(torch.float8_e5m2), 0x86C3DEB579B0674D),
    "complex64": (COUNT * (1 + 2j), 0xD6586EFB7DD8266D),
    "complex128": (COUNT.to(torch.complex128), 0xE9193083CF5A4AC7),
    "int64": (COUNT, 0xCA185A0636EB095F),
    "int32": (COUNT.to(torch.int32), 0x40AAF696EF5C50FF),
    "int8": (COUNT.to(torch.int8), 0x5ACE6A511C10894B),
    "uint8": (COUNT.to(torch.uint8), 0x5ACE6A511C10894B),
    "uint16": (COUNT.to(torch.uint16), 0xA078B8268F15CF2B),
    "bool": (COUNT % 3 == 0, 0x6CFA42B653A7ED0A),
    "scalar": (torch.tensor(2.5), 0x2BBE3A81888277B),
    "empty": (torch.empty(0, 3), 0x2D06800538D394C2),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_digests(name: str) -> None:
    """A known tensor's digest is XXH3-64 of its bytes, and stays what it is."""
    tensor, expected = GOLDEN[name]
    assert digest_tensor(tensor) == expected
    assert (
        digest_tensor(tensor.requires_grad_() if tensor.is_floating_point() and tensor.element_size() > 1 else tensor)
        == expected
    )
    assert digest_and_sketch(tensor)[0] == expected


def test_golden_words() -> None:
    """Digests of bytes, texts and sequences of digests keep their values."""
    assert digest_bytes(b"") == xxh3_64_intdigest(b"") == 0x2D06800538D394C2
    assert digest_bytes(b"abc") == 0x78AF5F94892F3950
    assert digest_text("−0.0") == digest_bytes("−0.0".encode())
    assert digest_text("\udcff")  # a file name that is no UTF-8
    assert combine([1, 2]) == digest_bytes((1).to_bytes(8, "little") + (2).to_bytes(8, "little"))
    assert combine([1, 2]) != combine([2, 1])
    assert ABSENT == 0
    assert (fingerprint.HOST_ALGORITHM, fingerprint.DEVICE_ALGORITHM) == ("xxh3-64", "mad64-1")


def test_equal_means_equal_bytes() -> None:
    """Zeros of both signs differ, and so do NaNs by payload; a NaN equals itself."""
    assert digest_tensor(torch.tensor([0.0])) != digest_tensor(torch.tensor([-0.0]))
    quiet, other = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32).split(1)
    assert digest_tensor(quiet) != digest_tensor(other)
    assert digest_tensor(quiet) == digest_tensor(quiet.clone())


def views() -> dict[str, torch.Tensor]:
    """Tensors that do not lie in memory as they read."""
    base = torch.randn(4, 3, 6, 5)
    spin = torch.randn(4, 6, dtype=torch.complex64)
    return {
        "transposed": base.transpose(1, 3),
        "strided": base[:, :, ::2],
        "offset": base[1:, 1:, 1:, 1:],
        "expanded": torch.randn(1, 5).expand(4, 5),
        "channels last": base.to(memory_format=torch.channels_last),
        "conjugated": spin.conj(),
        "conjugated and transposed": spin.conj().T,
        "negated": spin.conj().imag,
        "real part": spin.real,
        "requires gradients": torch.randn(4, 5, requires_grad=True).T,
        "parameter": torch.nn.Parameter(torch.randn(3, 2)),
    }


@pytest.mark.parametrize("name", views())
def test_the_layout_does_not_matter(name: str) -> None:
    """A view's digest is that of the same values in row-major order, on the host and by the device's algorithm."""
    view = views()[name]
    plain = torch.tensor(view.tolist(), dtype=view.dtype)
    assert digest_tensor(view) == digest_tensor(plain)
    assert digest_rows(view) == digest_rows(plain) == [digest_tensor(row) for row in plain]
    assert digest_and_sketch(view)[0] == digest_tensor(plain)
    assert digest_on_device(view) == digest_on_device(plain)


@pytest.mark.parametrize(("shape", "rows"), [((3, 0), 3), ((0, 3), 0), ((3,), 3), ((1, 2), 1)])
def test_rows_of_every_shape(shape: tuple[int, ...], rows: int) -> None:
    """There is one digest a row, also for rows without elements."""
    assert len(digest_rows(torch.zeros(shape))) == rows


def test_sketches_hold_three_elements() -> None:
    """The first, middle and last element are kept in 8 bytes each; of what cannot be shown there are zeros."""
    tensor = torch.arange(5, dtype=torch.int16)
    assert digest_and_sketch(tensor)[1] == b"".join(v.to_bytes(2, "little") + bytes(6) for v in (0, 2, 4))
    assert digest_and_sketch(torch.tensor(7))[1] == (7).to_bytes(8, "little") * 3
    for unseen in (torch.empty(0), torch.ones(2, dtype=torch.complex128), torch.ones(2, 2)[:, 0]):
        assert digest_and_sketch(unseen)[1] == bytes(24)


class Wrapper(torch.Tensor):
    """A tensor subclass without memory."""

    @staticmethod
    def __new__(cls: Any) -> Any:
        """Make one."""
        return torch.Tensor._make_wrapper_subclass(cls, (3,))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Detach, and nothing else."""
        del types, kwargs
        return args[0] if func is torch.ops.aten.detach.default else NotImplemented


@pytest.mark.parametrize("make", [lambda: torch.empty(3, device="meta"), Wrapper], ids=["meta", "wrapper"])
def test_a_tensor_without_bytes_is_refused(make: Any) -> None:
    """What has no memory raises, instead of reading where there is none."""
    for digest in (digest_tensor, digest_and_sketch, digest_rows):
        with pytest.raises((RuntimeError, NotImplementedError)):
            digest(make())


GOLDEN_DEVICE = {
    0: 0x0,
    1: 0xE220A8397B1DCDAF,
    7: 0x7167AB39E4875887,
    8: 0xDB073999198C3E5D,
    9: 0x8EDFAEB9EC20D6F6,
    1000: 0x1CBF180A999F6D69,
}


@pytest.mark.parametrize("size", GOLDEN_DEVICE)
def test_golden_device_digests(size: int) -> None:
    """The device's algorithm gives the values of its definition, computed here with Python's integers, and keeps them."""
    data = bytes(i * 7 % 256 for i in range(size))
    total = 0
    for i in range(0, size, 8):
        word = int.from_bytes(data[i : i + 8].ljust(8, b"\0"), "little")
        z = (word + (i // 8 + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        total = (total + (z ^ (z >> 31))) % 2**64
    tensor = torch.tensor(list(data), dtype=torch.uint8)
    assert int(digest_on_device(tensor)) % 2**64 == total == GOLDEN_DEVICE[size]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 2**31))
def test_the_sum_over_shards_is_the_whole(sizes: list[int], seed: int) -> None:
    """However a tensor is cut at whole words, the shards' digests add up to the whole tensor's."""
    words = torch.randint(-(2**62), 2**62, (sum(sizes),), generator=torch.Generator().manual_seed(seed))
    parts, offset = [], 0
    for part in words.split(sizes):
        parts.append(digest_on_device(part, offset))
        offset += part.numel()
    assert torch.stack(parts).sum() == digest_on_device(words)


def test_the_device_algorithm_sees_order_and_repetition() -> None:
    """A swap of two words and a value that occurs twice change the digest, as they would not change an XOR."""
    a, b = torch.tensor([1, 2, 3, 3]), torch.tensor([2, 1, 3, 3])
    assert digest_on_device(a) != digest_on_device(b)
    assert digest_on_device(torch.tensor([5, 5])) != digest_on_device(torch.tensor([6, 6]))


def test_large_tensors() -> None:
    """A tensor of many blocks has the digest of its bytes."""
    tensor = torch.arange(3_000_001, dtype=torch.float32)
    assert digest_tensor(tensor) == xxh3_64_intdigest(tensor.numpy().tobytes())
