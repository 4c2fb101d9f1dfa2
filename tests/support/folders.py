"""A sandbox whose files are those of the Workspace's real folder. Commands are a few words, not a shell."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from milepost.ports.sandbox import Exec, Operation, Outcome, Sandbox, SandboxSpec, WriteFile
from tests.support.sandboxes import MemorySandbox, MemorySandboxes


@dataclass
class FolderSandbox(MemorySandbox):
    """`write PATH TEXT`, `rm PATH`, `touch`; steps of a command are separated by ` && `. `hang` waits after them."""

    folder: Path = Path()

    def _run(self, operation: Operation) -> Outcome:
        match operation:
            case Exec(command=command):
                for step in command.split(" && "):
                    self._step(step)
                return Outcome(exit_code=0)
            case WriteFile(path=path, data=data):
                target = self.folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                return Outcome(detail={"bytes": len(data)})
            case _:
                return super()._run(operation)

    def _step(self, step: str) -> None:
        word, _, rest = step.partition(" ")
        path, _, text = rest.partition(" ")
        target = self.folder / path
        if word == "write":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text + "\n")
        elif word == "rm":
            shutil.rmtree(target) if target.is_dir() else target.unlink()


class FolderSandboxes(MemorySandboxes):
    """One for each Session, on its Workspace."""

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if spec.session_id not in self.by_session or spec.session_id in self.removed:
            self.by_session[spec.session_id] = FolderSandbox(folder=Path(spec.workspace_path))
            self.removed.discard(spec.session_id)
        return self.by_session[spec.session_id]
