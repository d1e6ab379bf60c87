"""`scripts/demo [PATH.gguf] [--once]`: control, an agent and a real engine as processes, an answer through the router.

It runs what conf/ says with nothing changed, but that the agent stops its engine when it ends, and that a model of
the user's own takes the place of the tiny one.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

from llmgw.commandline import EXIT_CONFIG, read_cluster, settle
from llmgw.demo.daemons import Interrupts
from llmgw.demo.show import EXIT_INTERRUPTED, DemoError, Plan, Show

GGUF_MAGIC = b"GGUF"

_MODEL_LINE = re.compile(r'^model = "[^"\n]*"$', re.MULTILINE)


def main() -> None:
    """Exit code 0: all was shown and all has ended. 130: interrupted. 1: it failed. 2: nothing was started."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="One real answer, end to end, on this machine.")
    parser.add_argument("gguf", metavar="PATH.gguf", nargs="?", type=Path, help="a model of your own, else a tiny one")
    parser.add_argument("--once", action="store_true", help="stop everything after the first answer")
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        plan = make_plan(given.root.absolute(), given.gguf, once=given.once)
    except DemoError as error:
        sys.stderr.write("".join(f"demo: {line}\n" for line in error.args))
        sys.exit(EXIT_CONFIG)
    interrupts = Interrupts()
    interrupts.install()
    show = Show(plan, interrupts)
    try:
        code = show.perform()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    finally:
        show.abort()
    sys.exit(code)


def make_plan(root: Path, gguf: Path | None, *, once: bool) -> Plan:
    """What will be run. DemoError where the files do not allow it; a wrong configuration ends the process."""
    cluster_toml = root / "conf/cluster.toml"
    environ = dict(os.environ)
    config = settle(lambda: read_cluster(str(cluster_toml), os.environ), check=False).config
    if gguf is not None:
        gguf = checked_gguf(gguf)
        changed = with_model(cluster_toml.read_text(), gguf)
        # Where it is now, a relative state_dir would mean another folder.
        environ["LLMGW_STATE_DIR"] = str(config.state_dir)
        cluster_toml = root / "var/demo/cluster.toml"
        cluster_toml.parent.mkdir(parents=True, exist_ok=True)
        cluster_toml.write_text(changed)
        config = settle(lambda: read_cluster(str(cluster_toml), environ), check=False).config
    model = next((model.name for model in config.models if model.profile is not None), None)
    if model is None:
        raise DemoError(f"{cluster_toml} has no model with a profile, so there is nothing to start")
    return Plan(root, cluster_toml, root / "conf/node.toml", environ, config, model, gguf, once)


def checked_gguf(path: Path) -> Path:
    """Its absolute path. DemoError unless it is a GGUF file that can be read."""
    try:
        with path.open("rb") as opened:
            magic = opened.read(len(GGUF_MAGIC))
    except OSError as error:
        raise DemoError(f"{path}: {error.strerror}; expected the path of a GGUF file") from None
    if magic != GGUF_MAGIC:
        raise DemoError(f"{path} is no GGUF file: it begins with {magic!r}")
    return path.absolute()


def with_model(text: str, gguf: Path) -> str:
    """The configuration with another model file in its one `model = "..."` line. DemoError if there is not one."""
    count = len(_MODEL_LINE.findall(text))
    if count != 1:
        raise DemoError(f'conf/cluster.toml has {count} lines `model = "..."`, expected one to put {gguf} into')
    # JSON's escapes are TOML's, but for the two halves of a character beyond U+FFFF, which are left as they are.
    line = f"model = {json.dumps(str(gguf), ensure_ascii=False)}"
    return _MODEL_LINE.sub(lambda _: line, text)


if __name__ == "__main__":
    main()
