"""`python -m bisect_env` is `bisect-env`."""

from bisect_env.cli import main

if __name__ == "__main__":
    main()
