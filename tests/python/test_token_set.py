"""trireme.write_set: what is written is what was given, read back by the format's page (docs/data.md), or nothing is left."""

import os
import random
import resource
import struct
import weakref

import numpy
import pytest
import torch
import trireme
import trireme.token_set

WIDTHS = {8: "H", 4: "i"}


def read_set(prefix):
    """Documents as lists of (id, is_target), and the index's parts."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, count, borders = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    at = 34
    sizes = struct.unpack_from(f"<{count}i", index, at)
    offsets = struct.unpack_from(f"<{count}q", index, at := at + 4 * count)
    documents = struct.unpack_from(f"<{borders}q", index, at := at + 8 * count)
    modes = index[at + 8 * borders :]
    assert len(modes) in (0, count) and documents[0] == 0 and documents[-1] == count
    tokens = prefix.with_suffix(".bin").read_bytes()
    width = struct.calcsize(WIDTHS[code])
    read = []
    for begin, end in zip(documents, documents[1:]):
        document = []
        for sequence in range(begin, end):
            ids = struct.unpack_from(f"<{sizes[sequence]}{WIDTHS[code]}", tokens, offsets[sequence])
            document += [(one, not (modes and modes[sequence])) for one in ids]
        read.append(document)
    assert len(tokens) == width * sum(sizes)
    return read, {"code": code, "sizes": sizes, "offsets": offsets, "documents": documents, "modes": modes}


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_bytes_are_those_of_the_page(tmp_path):
    report = trireme.write_set(tmp_path / "a", [[7, 8, 9], ([1, 2, 3, 4], [0, 0, 1, 0])], 100)
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<7H", 7, 8, 9, 1, 2, 3, 4)
    assert (tmp_path / "a.idx").read_bytes() == (
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 4, 3) + struct.pack("<4i", 3, 2, 1, 1)
        + struct.pack("<4q", 0, 6, 10, 12) + struct.pack("<3q", 0, 1, 4) + bytes([0, 1, 0, 1])
    )  # fmt: skip
    assert report == trireme.SetReport(2, 7, 2 + 1, 4, 0)
    assert sorted(files_in(tmp_path)) == ["a.bin", "a.idx"]


def test_the_report_is_of_all_documents(tmp_path):
    """The longest first, and those that are left out in no other count."""
    given = [[1, 2, 3, 4, 5], ([1, 2, 3, 4, 5, 6], [1, 0, 0, 0, 0, 0]), ([7, 8, 9], [0, 0, 1]), [7, 8], [1]]
    assert trireme.write_set(tmp_path / "a", given, 100) == trireme.SetReport(3, 10, 4 + 1 + 1, 5, 2)


def test_without_a_prompt_there_are_no_modes(tmp_path):
    trireme.write_set(tmp_path / "a", [([5, 6], [1, 1]), [7, 8]], 100)
    assert read_set(tmp_path / "a")[1] == {"code": 8, "sizes": (2, 2), "offsets": (0, 4), "documents": (0, 1, 2), "modes": b""}


@pytest.mark.parametrize("vocab_size, code", [(65_499, 8), (65_500, 4), (2**31, 4)])
def test_the_type_holds_every_id(tmp_path, vocab_size, code):
    trireme.write_set(tmp_path / "a", [[0, vocab_size - 1]], vocab_size)
    documents, index = read_set(tmp_path / "a")
    assert index["code"] == code and documents == [[(0, True), (vocab_size - 1, True)]]


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
def test_a_set_of_random_documents_is_read_as_it_was_given(tmp_path, monkeypatch, block):
    monkeypatch.setattr(trireme.token_set, "INDEX_BLOCK", block)
    draw = random.Random(7)
    given = []
    for _ in range(200):
        ids = [draw.randrange(70_000) for _ in range(draw.choice((0, 1, 2, 3, 40)))]
        flags = [draw.random() < 0.5 for _ in ids]
        given.append((ids, flags) if draw.random() < 0.7 else (ids, [True] * len(ids)))
    report = trireme.write_set(tmp_path / "a", iter(given), 70_000)
    documents, index = read_set(tmp_path / "a")
    kept = [list(zip(ids, flags)) for ids, flags in given if any(flags[1:])]
    assert documents == kept and len(kept) < len(given)
    assert min(index["sizes"]) > 0
    targets = sum(flag for document in kept for _, flag in document[1:])
    assert report == trireme.SetReport(len(kept), sum(map(len, kept)), targets, max(map(len, kept)), len(given) - len(kept))


@pytest.mark.parametrize("kind", [list, tuple, numpy.array, torch.tensor, lambda ids: numpy.array(ids, numpy.uint16)])
def test_any_sequence_is_a_document_of_any_length(tmp_path, kind):
    given = [kind([5, 6]), (kind([7, 8]), kind([0, 1])), [kind([9, 10]), kind([0, 1])], kind([11, 12, 13])]
    trireme.write_set(tmp_path / "a", given, 100)
    prompted = [[(7, False), (8, True)], [(9, False), (10, True)]]
    assert read_set(tmp_path / "a")[0] == [[(5, True), (6, True)], *prompted, [(11, True), (12, True), (13, True)]]


def test_a_document_is_let_go_of_before_the_next_but_one(tmp_path):
    class Ids(list):
        __hash__ = object.__hash__

    alive, most = weakref.WeakSet(), 0

    def stream():
        nonlocal most
        for _ in range(50):
            ids = Ids([1, 2, 3])
            alive.add(ids)
            most = max(most, len(alive))
            yield ids

    assert trireme.write_set(tmp_path / "a", stream(), 100).documents == 50
    assert most <= 2


def stream_that_fails():
    yield [1, 2, 3]
    raise RuntimeError("the source is away")


REFUSED_DATA = {
    "document 1 has the id 100 at token 1, outside the vocabulary of 100": [[1, 2], [3, 100]],
    "document 0 has the id -1 at token 0": [[-1, 2]],
    "document 1 has 2 ids and 3 values of is_target": [[1, 2], ([1, 2], [0, 1, 1])],
    "document 0: .*float.*expected a sequence of ids": [[1.0, 2.0]],
    "document 0: .*got 'ab'": ["ab"],
    "document 0: .*got 5$": [5],
    "document 0: is_target holds 2": [([1, 2], [1, 2])],
    "document 0: .*float.*0.5": [([1, 2], [0.5, 1])],
    "document 0: .*pair": [([1, 2], 1)],
    "document 0: .*input_ids": [{"input_ids": [1], "attention_mask": [1]}],
    "nothing to write: of 0 documents": [],
    "nothing to write: of 3 documents none has a token to predict": [[], [1], ([1, 2], [1, 0])],
}


@pytest.mark.parametrize("words", REFUSED_DATA)
@pytest.mark.parametrize("older", [False, True])
def test_data_that_is_refused_is_named_and_nothing_is_left(tmp_path, words, older):
    if older:
        trireme.write_set(tmp_path / "a", [[1, 2]], 100)
        (tmp_path / "a.set.json").write_text("{}")
    before = files_in(tmp_path)
    with pytest.raises(trireme.DataError, match=words):
        trireme.write_set(tmp_path / "a", REFUSED_DATA[words], 100, overwrite=older)
    assert files_in(tmp_path) == before


def test_what_the_source_raises_goes_on_and_nothing_is_left(tmp_path):
    with pytest.raises(RuntimeError, match="the source is away"):
        trireme.write_set(tmp_path / "a", stream_that_fails(), 100)
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("limit", [4096, 12_000])  # within the tokens, within the index
def test_a_disk_that_fails_is_named_and_nothing_is_left(tmp_path, limit):
    trireme.write_set(tmp_path / "a", [[1, 2]], 100)
    before = files_in(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(trireme.DataError, match=r"a\.(bin|idx): cannot be written: File too large"):
            trireme.write_set(tmp_path / "a", [[1, 2, 3, 4, 5]] * 1000, 100, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("there", ["a.bin", "a.idx"])
@pytest.mark.parametrize("prefix", ["a", "a.bin", "a.idx"])
def test_a_set_that_is_there_is_refused_before_anything_is_read(tmp_path, there, prefix):
    (tmp_path / there).write_bytes(b"mine")
    stream = iter([[1, 2]])
    with pytest.raises(trireme.ConfigError, match=f"{there} is there already.*--overwrite"):
        trireme.write_set(tmp_path / prefix, stream, 100)
    assert next(stream) == [1, 2] and files_in(tmp_path) == {there: b"mine"}


def test_an_index_or_fingerprint_never_lies_beside_another_sets_tokens(tmp_path, monkeypatch):
    trireme.write_set(tmp_path / "a", [[1, 2]], 100)
    (tmp_path / "a.set.json").write_text("{}")
    old, seen = files_in(tmp_path), []
    replace = os.replace

    def watched(source, target):
        replace(source, target)
        seen.append({name: data for name, data in files_in(tmp_path).items() if "partial" not in name})

    monkeypatch.setattr(os, "replace", watched)
    trireme.write_set(tmp_path / "a", [[3, 4]], 100, overwrite=True)
    assert [sorted(files) for files in seen] == [["a.bin"], ["a.bin", "a.idx"]]
    assert seen[0]["a.bin"] != old["a.bin"] and read_set(tmp_path / "a")[0] == [[(3, True), (4, True)]]
    assert sorted(files_in(tmp_path)) == ["a.bin", "a.idx"]


def test_tokens_whose_index_cannot_be_put_in_place_are_removed(tmp_path, monkeypatch):
    replace = os.replace

    def failing(source, target):
        if target.endswith(".idx"):
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(trireme.DataError, match="Input/output error"):
        trireme.write_set(tmp_path / "a", [[1, 2]], 100)
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("vocab_size", [0, -1, 2**31 + 1, 1.5, False, True, None])
def test_a_vocabulary_that_is_none_is_refused(tmp_path, vocab_size):
    with pytest.raises(trireme.ConfigError, match="vocab_size: got"):
        trireme.write_set(tmp_path / "a", [[0, 0]], vocab_size)


def test_the_folder_is_made(tmp_path):
    trireme.write_set(tmp_path / "new" / "folder" / "a", [[1, 2]], 100)
    assert sorted(files_in(tmp_path / "new" / "folder")) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("prefix", ["", "folder/", b"a"])
def test_a_prefix_without_a_name_is_refused(prefix):
    with pytest.raises(trireme.ConfigError, match="prefix: got"):
        trireme.write_set(prefix, [[1, 2]], 100)
