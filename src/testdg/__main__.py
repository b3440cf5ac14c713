"""`python -m testdg`: the command line."""

from testdg.cli import main

if __name__ == "__main__":
    main()
