"""Runs a script several times within one process, each time as a fresh `__main__`.

    python repeat.py COUNT NOTES SCRIPT [argument...]       also: -m MODULE, -c CODE instead of SCRIPT

Imported modules stay loaded, so later iterations start fast. The first iteration that fails ends the process
as it would without this runner: by its exception, exit code or signal. Before each iteration, the number of
iterations begun so far is written to the file NOTES.

This file must run in every Python from 2.7 to 3.14, so it has no annotations and no newer syntax.
"""

import os
import sys


def _code(words):
    """Compile a script or the code after `-c`; return the code, `__file__`, `sys.argv` and the folder.

    `words` are the words of the command line after NOTES.
    """
    kind = words[0]
    if kind == "-c":
        return compile(words[1], "<string>", "exec"), None, ["-c"] + words[2:], ""
    path = words[0]
    with open(path, "rb") as stream:
        source = stream.read()
    folder = os.path.dirname(os.path.realpath(path))
    return compile(source, path, "exec"), path, list(words), folder


def _begin(notes, number):
    fd = os.open(notes, os.O_WRONLY)
    try:
        os.write(fd, ("%9d" % number).encode())
    finally:
        os.close(fd)


def _run_module(words):
    """Run a module once, as a fresh `__main__` module; `words` are `-m MODULE` and its arguments."""
    import runpy  # imported here because a script would find it loaded

    sys.argv[:] = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)


def _run(code, path, argv, folder):
    """Run compiled code, from `_code`, one time as a fresh `__main__` module."""
    sys.argv[:] = argv
    sys.path[0] = folder
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if path is not None:
        main.__file__ = path
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _main():
    count, notes, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if words[0] == "-m":
        sys.path[0] = os.getcwd()
    compiled = None
    for number in range(1, count + 1):
        _begin(notes, number)
        try:
            if words[0] == "-m":
                _run_module(words)
            else:
                # Read once: the script may change the directory to which its path is relative.
                compiled = compiled or _code(words)
                _run(*compiled)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


_main()
