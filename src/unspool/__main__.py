"""``python -m unspool``: the command ``unspool``."""

from unspool.cli.main import main

main()
