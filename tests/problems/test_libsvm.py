"""The reader for LIBSVM files."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_breast_cancer

import nowait as nw
from nowait.problems import libsvm

TEXT = "+1 1:0.5 3:2 # a comment\n\n-1 2:-1e-3\n+1\n"


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)])
def test_plain_and_compressed_files(tmp_path, suffix, opener):
    path = tmp_path / f"data.txt{suffix}"
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(TEXT)
    features, labels = nw.problems.read_libsvm(path)
    assert features.toarray().tolist() == [[0.5, 0.0, 2.0], [0.0, -0.001, 0.0], [0.0, 0.0, 0.0]]
    assert labels.tolist() == [1.0, -1.0, 1.0]


def test_a_file_written_by_scikit_learn(tmp_path):
    features, labels = load_breast_cancer(return_X_y=True)
    dump_svmlight_file(features, labels, str(tmp_path / "data.svm"), zero_based=False)
    problem = nw.problems.LogisticRegression.from_libsvm(tmp_path / "data.svm", batch_size=4, l2=0.1)
    assert np.array_equal(problem.features.toarray(), features)
    assert np.array_equal(problem.targets > 0, labels == 1)


def test_a_dimension_widens_the_matrix(tmp_path):
    (tmp_path / "data").write_text(TEXT)
    features, _ = nw.problems.read_libsvm(tmp_path / "data", dimension=5)
    assert features.shape == (3, 5)
    with pytest.raises(ValueError, match="has indices up to 3, more than dimension=2"):
        nw.problems.read_libsvm(tmp_path / "data", dimension=2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2:0.1 3", r"data.txt, line 2: expected index:value, got '3'"),
        ("1 a:0.1", r"line 2: expected index:value, got 'a:0.1'"),
        ("1 2:x", r"line 2: the value of index 2 must be a number, got 'x'"),
        ("1 2:", r"line 2: the value of index 2 must be a number, got ''"),
        ("1 2:nan", r"line 2: the value of index 2 must be finite, got 'nan'"),
        ("one 2:1", r"line 2: a label must be a number, got 'one'"),
        ("1 0:1", r"line 2: index 0 in '0:1', but LIBSVM indices start at 1"),
        ("1 3:1 2:1", r"line 2: index 2 follows 3, but indices must increase along a line"),
        ("1 3:1 3:1", r"line 2: index 3 follows 3"),
        ("1 2:1_0", r"line 2: the value of index 2 must be a number, got '1_0'"),
        ("1 99999999999999999999:1", r"line 2: index 99999999999999999999 is larger than 2,147,483,647"),
        ("1 -3:1", r"line 2: expected index:value, got '-3:1'"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, message):
    path = tmp_path / "data.txt"
    path.write_text(f"-1 1:1\n{line}\n+1 1:1\n")
    with pytest.raises(ValueError, match=message):
        nw.problems.read_libsvm(path)


def test_a_line_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "data.txt"
    path.write_bytes(b"-1 1:1\n+1 1:\xff\n")
    with pytest.raises(ValueError, match="line 2: the value of index 1 must be a number"):
        nw.problems.read_libsvm(path)


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / "data").write_text("# nothing\n")
    with pytest.raises(ValueError, match="has no rows"):
        nw.problems.read_libsvm(tmp_path / "data")


def test_a_tiny_file_with_a_huge_index_is_refused_unless_the_dimension_is_given(tmp_path):
    path = tmp_path / "data"
    path.write_text("1 2147483647:1\n-1 1:1\n")
    message = r"has 2 values but the index 2,147,483,647, so every vector would take 16 GiB: give dimension=2147483647"
    with pytest.raises(ValueError, match=message):
        nw.problems.read_libsvm(path)
    features, _ = nw.problems.read_libsvm(path, dimension=2**31 - 1)
    assert features.shape == (2, 2**31 - 1)


def test_a_wide_file_with_as_many_values_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(libsvm, "FREE_WIDTH", 4)
    path = tmp_path / "data"
    path.write_text("1 1:1 2:1 3:1\n1 4:1 5:1\n")
    assert nw.problems.read_libsvm(path)[0].shape == (2, 5)
    path.write_text("1 1:1 2:1 3:1\n1 5:1\n")
    with pytest.raises(ValueError, match="has 4 values but the index 5"):
        nw.problems.read_libsvm(path)


def test_leading_zeros_of_an_index_are_read_and_endless_ones_refused(tmp_path):
    path = tmp_path / "data"
    path.write_text("1 00000000000003:1\n")
    assert nw.problems.read_libsvm(path)[0].shape == (1, 3)
    path.write_text("1 " + "9" * 5_000 + ":1\n")
    with pytest.raises(ValueError, match=r"line 1: index 9{30} is larger than 2,147,483,647"):
        nw.problems.read_libsvm(path)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(libsvm, "LONGEST_LINE", 100)
    path = tmp_path / "data.gz"
    with gzip.open(path, "wt") as file:
        file.write("1 1:1\n" + "0" * 100_000)
    with pytest.raises(ValueError, match="line 2 has at least 100 characters: is it a LIBSVM file"):
        nw.problems.read_libsvm(path)
    path = tmp_path / "short"
    path.write_text("1 1:1\n1 2:1")
    assert nw.problems.read_libsvm(path)[0].shape == (2, 2), "the last line has no end"
