"""Builds the wheel, checks its contents, installs it into an empty environment and runs the README's example there."""

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nowait-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        check_content(zipfile.ZipFile(wheel).namelist())
        python = install(wheel, folder)
        run_example(python, folder)
    print(f"{wheel.name}: built, installed into an empty environment, example run")


def build(folder: Path) -> Path:
    run([sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", str(folder / "dist"), str(ROOT)])
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def check_content(names: list[str]) -> None:
    """Exit unless the wheel contains exactly the packages, with py.typed and the report's assets, and no tests."""
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file())
    package = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    found = {name for name in names if not re.match(r"nowait-[^/]+\.dist-info/", name)}
    if found != package:
        sys.exit(f"missing in the wheel: {sorted(package - found)}; unexpected in it: {sorted(found - package)}")


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel with the pip that runs this script: an environment without pip is made in no time."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    options = ["--no-compile", "--constraint", str(ROOT / "constraints.txt")]
    run([sys.executable, *PIP, "--python", str(python), "install", *options, str(wheel)])
    return python


def run_example(python: Path, folder: Path) -> None:
    """Run the README's example with the installed package: -I ignores PYTHONPATH and the current folder."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    if example is None:
        sys.exit("README.md has no Python example")
    where = "import nowait, sys; sys.exit(0 if nowait.__file__.startswith(sys.prefix) else nowait.__file__)"
    for command in (["-I", "-c", where], ["-I", "-c", example[1]]):
        run([str(python), *command], cwd=folder)
    run([str(python.with_name("nowait")), "--help"], cwd=folder)


def run(command: list[str], cwd: Path = ROOT) -> None:
    result = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)[:300]}\nexited with status {result.returncode}:\n{result.stdout}")


if __name__ == "__main__":
    main()
