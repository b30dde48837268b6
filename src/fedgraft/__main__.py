"""``python -m fedgraft`` is the command line."""

from fedgraft.cli import main

main()
