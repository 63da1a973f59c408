"""``python -m meshwright`` is the same as ``meshwright``."""

from meshwright.cli.app import main

if __name__ == "__main__":
    main()
