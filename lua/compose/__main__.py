"""`python -m lua.compose`: compose the scripts for the package, if a file has changed since.

`--into FOLDER` writes each of them into its own file instead, for linters and for other clients.
`--uses` writes into the header of each file which foreign names its code uses; `--uses --check` compares.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> None:
    """Run the command."""
    # The package of this checkout, which is not installed when a wheel is built.
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

    from lua.compose.linker import BrokenContract
    from lua.compose.writer import check_uses, refresh, write_texts, write_uses

    try:
        match arguments:
            case []:
                if refresh():
                    print("Composed the scripts of lua/")  # noqa: T201 - says what `make` waits for
            case ["--into", folder]:
                write_texts(Path(folder))
            case ["--uses"]:
                write_uses()
            case ["--uses", "--check"]:
                check_uses()
            case _:
                raise SystemExit("usage: python -m lua.compose [--into FOLDER | --uses [--check]]")
    except BrokenContract as error:
        raise SystemExit(f"lua: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
