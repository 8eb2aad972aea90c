"""Files have the permissions that they should, and links stay links."""

from __future__ import annotations

import os

import pytest

from lmbm_torch.files import UNFINISHED, replacing, write_text

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


@pytest.fixture
def umask():
    """Set it for one test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def permissions(path):
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("mode", ["x", "w"])
@pytest.mark.parametrize("mask", [0o077, 0o027, 0o002, 0o022])
def test_a_new_file_has_what_the_umask_leaves(tmp_path, umask, mask, mode):
    umask(mask)
    write_text(tmp_path / "file", "text", mode)
    assert permissions(tmp_path / "file") == 0o666 & ~mask


@pytest.mark.parametrize("own", [0o600, 0o640, 0o664])
def test_a_replaced_file_keeps_its_own(tmp_path, umask, own):
    file = tmp_path / "file"
    file.write_text("private")
    file.chmod(own)
    with replacing(file) as stream:
        (unfinished,) = tmp_path.glob(f"*{UNFINISHED}")
        assert permissions(unfinished) == own
        stream.write(b"still private")
    assert permissions(file) == own
    assert file.read_text() == "still private"


def test_what_a_link_leads_to_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "file", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    with pytest.raises(FileExistsError, match="link"):
        write_text(link, "newer", "x")
    target.unlink()
    with pytest.raises(FileExistsError, match="link"):
        write_text(link, "newer", "x")
    write_text(link, "newest")
    assert target.read_text() == "newest"
    assert [each.name for each in target.parent.iterdir()] == ["file"]
