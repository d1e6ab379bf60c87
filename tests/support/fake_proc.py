"""A /proc of our own."""

from pathlib import Path

import attrs

BOOT = "6c1c8c9d-0000-4000-8000-000000000001"


@attrs.frozen
class FakeProc:
    """Writes what /proc would say below a folder."""

    path: Path

    @property
    def root(self) -> str:
        return str(self.path)

    def boot(self, boot_id: str = BOOT) -> None:
        file = self.path / "sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(boot_id + "\n")

    def add(
        self,
        pid: int,
        *,
        parent: int = 1,
        session: int = 1,
        start: int = 100,
        state: str = "S",
        name: str = "engine",
        environ: dict[str, str] | None = None,
        inodes: tuple[int, ...] = (),
        uid: int = 1000,
    ) -> None:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        # pid (name) state ppid pgrp session, fourteen that do not matter, and the start time
        rest = " ".join("0" for _ in range(15))
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {pid} {session} {rest} {start} 0 0\n")
        if environ is not None:
            (folder / "environ").write_text("".join(f"{key}={value}\0" for key, value in environ.items()))
        (folder / "cmdline").write_text(f"/opt/{name}\0--secret\0x\0")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "fd/0").symlink_to("/dev/null")
        for number, inode in enumerate(inodes, 3):
            (folder / f"fd/{number}").symlink_to(f"socket:[{inode}]")
