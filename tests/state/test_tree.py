"""The codec of state trees: every bit, every kind of sharing, and nothing else."""

import collections
import enum
import json
import math
import pickle
import random
import struct
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitproof.state import StateCorruptError, StateVersionError, UnsupportedStateError, decode, encode, snapshot
from bitproof.state.dtypes import AS_BYTES, STORED
from bitproof.state.restore import differences, same_bits
from bitproof.state.tree import MAX_DEPTH


def through(tree: Any) -> Any:
    """Encode, store as safetensors would, decode."""
    document, tensors = encode(tree)
    for tensor in tensors.values():
        assert tensor.is_contiguous()
        assert tensor.dtype in STORED
    return decode(document, {name: tensor.clone() for name, tensor in tensors.items()})


doubles = st.binary(min_size=8, max_size=8).map(lambda b: struct.unpack("<d", b)[0]) | st.floats()
texts = st.text(st.characters(exclude_categories=()), max_size=6)
scalars = st.none() | st.booleans() | st.integers() | doubles | texts | st.binary(max_size=6) | st.complex_numbers()
key_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
keys = key_scalars | st.tuples(key_scalars, key_scalars)
tensors = st.builds(
    lambda dtype, shape, seed: (
        torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8))
        .reshape(-1)
        .view(dtype)
        .reshape(shape)
        if dtype is not torch.bool
        else torch.from_numpy(np.random.default_rng(seed).integers(0, 2, shape, dtype=np.uint8)).bool()
    ),
    st.sampled_from(sorted(STORED | AS_BYTES, key=str)),
    st.sampled_from([(), (0,), (1,), (3,), (2, 0), (2, 3), (2, 1, 4)]),
    st.integers(0, 2**32),
)
arrays = st.builds(
    lambda dtype, shape, seed: np.frombuffer(
        np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype=dtype
    ).reshape(shape),
    st.sampled_from(["<f2", "<f4", ">f8", "<c16", "i1", "<u8", "S3", "M8[ns]", "m8[s]"]),
    st.sampled_from([(1,), (3,), (2, 3), ()]),
    st.integers(0, 2**32),
)
trees = st.recursive(
    scalars | tensors | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.builds(collections.deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 5))
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None)
@given(trees)
def test_any_tree_comes_back_with_every_bit_and_type(tree: Any) -> None:
    """A round trip changes no value, no bit and no type, and a second one gives the same document."""
    back = through(tree)
    assert type(back) is type(tree)
    assert not list(differences(tree, back))
    assert encode(back).document == encode(tree).document


@pytest.mark.parametrize("dtype", sorted(STORED | AS_BYTES, key=str), ids=str)
def test_every_dtype_survives(dtype: torch.dtype) -> None:
    """Each dtype comes back with its bits, also 0-dimensional and empty."""
    raw = torch.arange(4 * dtype.itemsize, dtype=torch.uint8) % 2
    tensor = raw.view(dtype) if dtype is not torch.bool else raw.bool()
    back = through([tensor, tensor[0], tensor[:0]])
    assert same_bits(back[0], tensor)
    assert same_bits(back[1], tensor[0])
    assert same_bits(back[2], tensor[:0])


def test_golden_document() -> None:
    """The stored form of version 1 does not change."""
    weight = torch.tensor([[1.0, 2.0]])
    shared = [1]
    tree = {
        "model": {"fc.weight": weight, "fc/bias": torch.tensor(3, dtype=torch.int64)},
        3: (-0.0, 1.5, math.inf, 2**70, None, True),
        "again": [shared, shared, weight],
        "text": "é\ud800",
        (1, "a"): {2, 1},
        "queue": collections.deque([b"\x00"], 2),
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "numpy": np.float32(1.5),
    }
    document, tensors = encode(tree)
    assert document.decode() == (
        '{"format":"bitproof-state","version":1,"root":{"is":"dict","items":[["model",{"is":"dict","items":['
        '["fc.weight",{"is":"shared","id":0,"value":{"is":"tensor","name":"model/fc.weight","dtype":"float32","shape":[1,2]}}],'
        '["fc/bias",{"is":"tensor","name":"model/fc%2Fbias","dtype":"int64","shape":[]}]]}],'
        '[3,{"is":"tuple","items":[-0.0,1.5,{"is":"float","bits":"7ff0000000000000"},'
        '{"is":"int","hex":"0x400000000000000000"},null,true]}],'
        '["again",{"is":"list","items":[{"is":"shared","id":1,"value":{"is":"list","items":[1]}},{"is":"again","id":1},{"is":"again","id":0}]}],'
        '["text",{"is":"text","hex":"c3a9eda080"}],'
        '[{"is":"tuple","items":[1,"a"]},{"is":"set","items":[1,2]}],'
        '["queue",{"is":"deque","items":[{"is":"bytes","data":"AA=="}],"maxlen":2}],'
        '["dtype",{"is":"dtype","name":"bfloat16"}],["size",{"is":"size","items":[2,3]}],'
        '["numpy",{"is":"numpyscalar","dtype":"<f4","hex":"0000c03f"}]]}}'
    )
    assert list(tensors) == ["model/fc.weight", "model/fc%2Fbias"]
    assert not list(differences(tree, decode(document, tensors)))


def test_golden_document_of_views_and_generators() -> None:
    """The stored form of shared memory and of a generator does not change."""
    base = torch.arange(8, dtype=torch.float32)
    document, tensors = encode({"a": base[1:4], "b": base[2:6], "rng": np.random.Generator(np.random.PCG64(0))})
    assert document.decode() == (
        '{"format":"bitproof-state","version":1,"root":{"is":"dict","items":['
        '["a",{"is":"tensor","name":"a#shared","dtype":"float32","shape":[3],"offset":4}],'
        '["b",{"is":"tensor","name":"a#shared","dtype":"float32","shape":[4],"offset":8}],'
        '["rng",{"is":"numpygenerator","bit_generator":{"is":"bitgenerator","name":"PCG64","state":{"is":"dict","items":['
        '["bit_generator","PCG64"],["state",{"is":"dict","items":['
        '["state",{"is":"int","hex":"0x1aa1b5345996452d09585eb7a69561e3"}],'
        '["inc",{"is":"int","hex":"0x418ddadb3af71a82588133bc447873a9"}]]}],["has_uint32",0],["uinteger",0]]},'
        '"seed":{"is":"dict","items":[["entropy",0],["spawn_key",{"is":"tuple","items":[]}],'
        '["pool_size",4],["n_children_spawned",0]]}}}]]}}'
    )
    assert tensors["a#shared"].tolist() == [0] * 6 + [128, 63] + list(base[2:6].numpy().tobytes())


def test_equal_trees_give_equal_documents_whatever_the_hash_order() -> None:
    """A set's document does not depend on the order in which it was filled."""
    assert encode({"a", "b", "c", 1, None}).document == encode({None, 1, "c", "b", "a"}).document


def test_shared_containers_come_back_as_one_object() -> None:
    """A list, dict or tensor that occurs twice is one object again; equal but separate ones stay separate."""
    items, moments = [1], {"a": torch.ones(2)}
    back = through({"x": items, "y": (items, [1]), "m": [moments, moments], "t": moments["a"]})
    assert back["x"] is back["y"][0]
    assert back["x"] is not back["y"][1]
    assert back["m"][0] is back["m"][1]
    assert back["t"] is back["m"][0]["a"]


def test_a_small_view_does_not_drag_its_storage() -> None:
    """Of a view of a large tensor only its own elements are stored, also of two that do not overlap."""
    whole = torch.arange(1_000_000.0)
    matrix = whole.reshape(1000, 1000)
    document, tensors = encode({"head": whole[:999], "one": matrix[1:, 1], "two": matrix[1:, 2]})
    assert sum(tensor.nbytes for tensor in tensors.values()) == 4 * 3 * 999
    back = decode(document, tensors)
    assert torch.equal(back["two"], matrix[1:, 2])


def test_overlapping_views_alias_again() -> None:
    """Views that see the same memory see the same memory after the round trip, whatever their dtype and strides."""
    whole = torch.arange(40.0)
    tree = {
        "a": whole[2:10],
        "b": whole[5:20],
        "c": whole.view(torch.int32)[6:8],
        "d": whole[4:12:2],
        "apart": whole[30:].clone(),
    }
    document, tensors = encode(tree)
    assert len(tensors) == 2
    back = through(tree)
    assert not list(differences(tree, back))
    back["b"][1] = -1.0
    assert back["a"][4] == -1.0
    assert back["d"][1] == -1.0
    assert back["c"].view(torch.float32)[0] == -1.0
    assert decode(document, tensors)["apart"].tolist() == list(range(30, 40))


def test_a_tied_weight_and_its_transpose_are_stored_once() -> None:
    """A weight, its transpose and a detached alias share one stored tensor under the weight's own name."""
    weight = torch.nn.Parameter(torch.randn(3, 4))
    tree = {"t": weight.detach().t(), "weight": weight, "alias": weight.detach()}
    _, tensors = encode(tree)
    assert [(name, list(tensor.shape)) for name, tensor in tensors.items()] == [("weight", [3, 4])]
    back = through(tree)
    assert isinstance(back["weight"], torch.nn.Parameter)
    back["weight"].data[0, 1] = 9.0
    assert back["t"][1, 0] == 9.0
    assert back["alias"][0, 1] == 9.0


def test_a_numpy_array_and_a_tensor_over_it_alias_again() -> None:
    """Memory that an array and a tensor share is shared after the round trip."""
    array = np.arange(6.0).reshape(2, 3)
    back = through({"array": array, "tensor": torch.from_numpy(array)[1], "rows": array[:, ::2]})
    back["tensor"][2] = -5.0
    assert back["array"][1, 2] == -5.0
    assert back["rows"][1, 1] == -5.0


def test_memory_layout_survives() -> None:
    """A channels-last tensor and a Fortran-ordered array keep their layout, which decides what kernels run on them."""
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = through({"image": image, "array": np.asfortranarray(np.arange(6.0).reshape(2, 3))})
    assert back["image"].stride() == image.stride()
    assert torch.equal(back["image"], image)
    assert back["array"].flags.f_contiguous
    assert back["array"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_numpy_arrays_of_every_plain_kind_survive() -> None:
    """Structured, text, date, big-endian, read-only, mirrored and empty arrays come back the same."""
    frozen = np.arange(3)
    frozen.flags.writeable = False
    tree = [
        np.array([(1, [2.0, 3.0])], dtype=[("n", "<i4"), ("v", ">f8", (2,))]),
        np.array(["a", "bcd"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.arange(3, dtype=">i2"),
        frozen,
        np.arange(5)[::-1],
        np.zeros((0, 3)),
        np.array([""], dtype="U0"),
        np.float16(-0.0),
        np.str_("x"),
        np.datetime64("2020-01-01", "s"),
        np.dtype("<f4"),
        np.array([(1, 2)], dtype=[("a", "i1"), ("b", "i1")])[0],
    ]
    back = through(tree)
    for old, new in zip(tree, back, strict=True):
        assert type(new) is type(old)
        assert getattr(new, "dtype", new) == getattr(old, "dtype", old)
        assert np.array_equal(new, old)


def test_complex_and_conjugate_tensors_keep_their_values() -> None:
    """A lazy conjugate is stored as the numbers that it stands for, also beside its base."""
    base = torch.tensor([1 + 2j, 3 - 4j])
    back = through({"base": base, "conj": base.conj(), "imag": base.imag, "negative": base.conj().imag})
    assert torch.equal(back["conj"], base.conj())
    assert torch.equal(back["negative"], base.conj().imag)
    back["imag"][0] = 7.0
    assert back["base"][0] == 1 + 7j


def test_generators_go_on_where_they_were() -> None:
    """Each kind of generator draws the same numbers after the round trip, and two over one stream still share it."""
    stream = np.random.Philox(3)
    made = {
        "python": random.Random(1),
        "torch": torch.Generator().manual_seed(2),
        "a": np.random.Generator(stream),
        "b": np.random.Generator(stream),
        "legacy": np.random.RandomState(4),
        **{name: getattr(np.random, name)(5) for name in ("MT19937", "PCG64", "PCG64DXSM", "SFC64")},
    }
    made["python"].gauss(0, 1)
    made["legacy"].normal()
    made["a"].integers(10, dtype=np.int32)
    back = through(made)
    assert back["python"].gauss(0, 1) == made["python"].gauss(0, 1)
    assert torch.equal(torch.rand(3, generator=back["torch"]), torch.rand(3, generator=made["torch"]))
    assert back["legacy"].normal() == made["legacy"].normal()
    assert [back["a"].random(), back["b"].random()] == [made["a"].random(), made["b"].random()]
    for name in ("MT19937", "PCG64", "PCG64DXSM", "SFC64"):
        assert np.random.Generator(back[name]).random() == np.random.Generator(made[name]).random()


def test_a_generators_next_child_survives() -> None:
    """A generator that has spawned gives the next child after the round trip, not the first again."""
    parent = np.random.default_rng(0)
    parent.spawn(2)
    back = through({"rng": parent})["rng"]
    assert back.spawn(1)[0].random() == parent.spawn(1)[0].random()


def test_ordered_and_default_dicts_come_back_as_dicts_and_counters_as_counters() -> None:
    """Subclasses that state dicts are made of are taken; a milestone counter keeps its class."""
    tree = {
        "ordered": collections.OrderedDict(b=1, a=2),
        "default": collections.defaultdict(list, x=[1]),
        "milestones": collections.Counter([5, 5, 9]),
    }
    back = through(tree)
    assert type(back["ordered"]) is dict
    assert list(back["ordered"]) == ["b", "a"]
    assert type(back["default"]) is dict
    assert type(back["milestones"]) is collections.Counter
    assert list(back["milestones"].elements()) == [5, 5, 9]


def test_keys_that_look_alike_keep_their_tensors_apart() -> None:
    """The keys 0 and "0", a slash in a key, and a reserved name all give different tensors."""
    tree = {0: torch.ones(1), "0": torch.zeros(1), "a/b": torch.ones(2), "a": {"b": torch.zeros(2)}}
    _, tensors = encode(tree)
    assert list(tensors) == ["0", "0#2", "a%2Fb", "a/b"]
    assert not list(differences(tree, through(tree)))
    assert list(encode({"__metadata__": torch.ones(1)}).tensors) == ["%5F_metadata__"]
    assert list(encode(torch.ones(1)).tensors) == ["."]


class Color(enum.IntEnum):
    """An enumeration that is an int as well."""

    RED = 1


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "is a object, which has no form in a state tree; give it state_dict() and load_state_dict()"),
        (Color.RED, "Color, which has no form in a state tree; make it a plain int"),
        (Point(1, 2), "Point, which has no form in a state tree; make it a plain tuple, with tuple(value)"),
        (bytearray(b"a"), "is a bytearray, which has no form in a state tree; make it bytes"),
        (lambda: 1, "is a function, which has no form"),
        (torch.nn.Linear(1, 1), "register the module as a part of the run"),
        (torch.ones(2).to_sparse(), "save its indices and values, or to_dense()"),
        (torch.empty(2, device="meta"), "make it a plain strided tensor that holds data"),
        (np.array([object()]), "NumPy dtype object has no stored form"),
        (np.ma.masked_array([1], [True]), "make it a plain array, with numpy.asarray(value)"),
        (random.SystemRandom(), "random.SystemRandom, whose state cannot be taken; use one of MT19937"),
    ],
)
def test_what_has_no_form_is_refused_by_path_and_type(value: Any, message: str) -> None:
    """A refusal names the path, the type and what to do."""
    with pytest.raises(UnsupportedStateError) as caught:
        encode({"model": [1, {"x": value}]})
    assert isinstance(caught.value, TypeError)
    assert str(caught.value).startswith("state['model'][1]['x']")
    assert message in str(caught.value)


def test_a_tree_must_end() -> None:
    """A tree that contains itself, one that is too deep, and a key that is an object are refused by path."""
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(UnsupportedStateError, match=r"state\['a'\]\[1\] contains itself \(list\)"):
        encode({"a": loop})
    deep: list[Any] = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(UnsupportedStateError, match=f"nested more than {MAX_DEPTH} deep; flatten it"):
        encode(deep)
    assert through(deep[0]) == deep[0]
    with pytest.raises(UnsupportedStateError, match="keys and set items must be None, numbers, text"):
        encode({"a": {torch.float32: 1}})


def test_a_snapshot_cannot_be_changed_from_outside() -> None:
    """Nothing done to the live tree reaches its snapshot (a kept state dict that follows training)."""
    tree = {"w": torch.ones(3), "history": [1], "array": np.ones(2), "tied": None}
    tree["tied"] = tree["w"]
    kept = snapshot(tree)
    tree["w"].zero_()
    tree["history"].append(2)
    tree["array"][:] = 0
    assert kept["w"].tolist() == [1, 1, 1]
    assert kept["tied"] is kept["w"]
    assert kept["history"] == [1]
    assert kept["array"].tolist() == [1, 1]


def _document(root: Any, **changes: Any) -> bytes:
    return json.dumps({"format": "bitproof-state", "version": 1, "root": root, **changes}).encode()


TENSOR = {"is": "tensor", "name": "t", "dtype": "float32", "shape": [2]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "damaged"),
        (pickle.dumps({"a": 1}), "damaged"),
        (b'{"format":"bitproof-state","version":1,"root":', "damaged"),
        (_document(1, format="other"), "its format is 'other', expected 'bitproof-state'"),
        (_document(1, extra=1), "damaged"),
        (_document({"is": "pickle", "data": ""}), "damaged"),
        (_document({"is": "list", "items": [], "more": 1}), "damaged"),
        (_document({"is": "size", "items": ["2"]}), "damaged"),
        (_document({"is": "again", "id": 0}), "before it is there"),
        (_document({"is": "shared", "id": 0, "value": {"is": "again", "id": 0}}), "before it is there"),
        (_document({"is": "dict", "items": [[1, 2], [True, 3]]}), "two equal keys"),
        (_document({"is": "dict", "items": [[{"is": "list", "items": []}, 3]]}), "key of type list"),
        (_document({"is": "float", "bits": "zz"}), "cannot be read"),
        (_document({"is": "dtype", "name": "load"}), "this torch"),
        (_document({**TENSOR, "name": "missing"}), "needs the tensor 'missing'"),
        (
            _document({**TENSOR, "dtype": "int8"}),
            "is float32 of shape [2]; the state document expects int8 of shape [2]",
        ),
        (
            _document({**TENSOR, "shape": [3]}),
            "is float32 of shape [2]; the state document expects float32 of shape [3]",
        ),
        (_document({**TENSOR, "dtype": "qint8"}), "no stored form"),
        (_document({**TENSOR, "offset": 4}), "cannot be read"),
        (_document({**TENSOR, "offset": 0, "strides": [9]}), "cannot be read"),
        (_document({**TENSOR, "strides": [0]}), "gaps or overlaps"),
        (_document({"is": "array", "name": "t", "dtype": "|O", "shape": [1]}), "cannot be read"),
        (_document({"is": "array", "name": "t", "dtype": [["x", "O"]], "shape": [1]}), "dtype"),
        (_document({"is": "array", "name": "t", "dtype": "<f4", "shape": [9], "offset": 0}), "cannot be read"),
        (_document({"is": "numpyscalar", "dtype": "<f4", "hex": "00"}), "of 1 bytes, expected 4"),
        (_document({"is": "bitgenerator", "name": "default_rng", "state": None}), "known are"),
        (_document({"is": "pythonrandom", "state": {"is": "tuple", "items": [3, 4, 5]}}), "cannot be read"),
        (_document({"is": "torchgenerator", "device": "cpu", "state": TENSOR}), "cannot be read"),
    ],
)
def test_a_damaged_or_hostile_document_is_refused(document: bytes, message: str) -> None:
    """Whatever a document says, reading it gives plain data or a named error."""
    with pytest.raises(StateCorruptError, match=message.replace("[", r"\[")):
        decode(document, {"t": torch.ones(2)})


def test_another_version_is_refused_by_number() -> None:
    """A newer document is told apart from a damaged one, also if it has fields that are not known here."""
    with pytest.raises(StateVersionError, match="has version 2; this bitproof reads version 1"):
        decode(_document(1, version=2, new="field"), {})
