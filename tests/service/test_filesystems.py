"""Which file system a path is on, from what the kernel says, and which of them may hold a database."""

from pathlib import Path, PurePosixPath

import pytest

from epochal.service.filesystems import FilesystemVerdict, judge, kind_of

MACHINE = r"""
22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 27 0:26 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,size=3277848k,mode=755,inode64
40 27 259:1 / /boot/efi rw,relatime shared:30 - vfat /dev/nvme0n1p1 rw,fmask=0077
51 27 0:44 / /home rw,relatime shared:80 - nfs4 filer.example:/export/home rw,vers=4.2,hard,proto=tcp
58 51 253:3 / /home/local\040disk rw,relatime shared:84 master:2 propagate_from:1 - xfs /dev/mapper/vg-local rw
63 27 0:50 / /mnt/tab\011and\134back rw,relatime - cifs //server/share rw,vers=3.1.1
66 27 0:52 /@data /srv rw,noatime shared:90 - btrfs /dev/sdb1 rw,subvolid=257,subvol=/@data
70 66 0:55 / /srv/bucket rw,nosuid,nodev - fuse.s3fs s3fs rw,user_id=0,group_id=0
75 31 0:60 / /run/user/1000/doc rw,nosuid,nodev - fuse.portal portal rw,user_id=1000
"""
CONTAINER = """
812 700 0:120 / / rw,relatime - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/u,workdir=/w
813 812 0:123 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
820 812 0:98 / /data rw,relatime - ceph 10.0.0.1:6789:/volumes/x rw,name=kube
821 812 253:1 /var/lib/pods/1/hosts /etc/hosts rw,relatime - ext4 /dev/vda1 rw
"""
COVERED = """
27 1 8:1 / / rw - ext4 /dev/sda1 rw
30 27 0:40 / /srv/a rw - nfs server:/a rw
31 27 8:2 / /srv rw - xfs /dev/sdb1 rw
40 27 8:3 / /mnt rw - ext4 /dev/sdc1 rw
41 40 0:41 / /mnt rw - nfs server:/mnt rw
"""


@pytest.mark.parametrize(
    ("mountinfo", "path", "kind"),
    [
        (MACHINE, "/", "ext4"),
        (MACHINE, "/var/lib/epochal", "ext4"),
        (MACHINE, "/home/ann/epochal", "nfs4"),
        (MACHINE, "/home/local disk/epochal", "xfs"),
        (MACHINE, "/home/localdisk", "nfs4"),
        (MACHINE, "/homes", "ext4"),
        (MACHINE, "/mnt/tab\tand\\back/x", "cifs"),
        (MACHINE, "/srv/epochal", "btrfs"),
        (MACHINE, "/srv/bucket", "fuse.s3fs"),
        (CONTAINER, "/work", "overlay"),
        (CONTAINER, "/data/catalog", "ceph"),
        (COVERED, "/srv/a/b", "xfs"),  # what is mounted at /srv/a is hidden by the later /srv
        (COVERED, "/mnt/x", "nfs"),  # the upper one of two at one place
        ("", "/x", ""),
        ("no such line\n1 2 - ext4\n36 35 98:0 / / rw -", "/x", ""),
    ],
)
def test_the_mount_that_the_kernel_would_take_decides(mountinfo: str, path: str, kind: str) -> None:
    assert kind_of(PurePosixPath(path), mountinfo) == kind


def test_this_machine_says_what_it_is() -> None:
    text = Path("/proc/self/mountinfo").read_text()
    assert kind_of(PurePosixPath("/proc/self"), text) == "proc"
    assert kind_of(PurePosixPath(Path.cwd()), text)


REFUSED = (
    "nfs nfs4 cifs smb3 smbfs 9p ceph fuse.ceph glusterfs fuse.glusterfs lustre gpfs beegfs afs virtiofs vboxsf"
    " fuse.sshfs vmhgfs orangefs"
)
TAKEN = "ext4 xfs btrfs zfs tmpfs overlay fuse.fuse-overlayfs fuseblk f2fs bcachefs ext3 jfs fusectl"


def test_every_file_system_is_judged_by_its_type() -> None:
    assert {kind: judge(kind) for kind in REFUSED.split()} == dict.fromkeys(REFUSED.split(), FilesystemVerdict.SHARED)
    assert {kind: judge(kind) for kind in TAKEN.split()} == dict.fromkeys(TAKEN.split(), FilesystemVerdict.FIT)
    unknown = ["fuse", "fuse.s3fs", "fuse.mergerfs", "fuse.rclone", "fuse3"]
    assert {judge(kind) for kind in unknown} == {FilesystemVerdict.UNKNOWN}
