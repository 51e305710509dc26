"""Reading native stacks as gdb prints them. Pure."""

from __future__ import annotations

import re

_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<name>.+)$")
_HANDLER = "<signal handler called>"
_PLACE = re.compile(r" (?:at (?:(?! at ).)+:\d+|from (?:(?! from ).)+)$")
_THREAD = re.compile(r"^Thread (\d+) (?P<took>.*received signal )?")
_ABORTING = re.compile(
    # How a process brings SIGABRT on itself says nothing about why.
    r"^_*(?:GI_+)?(?:raise|abort|gsignal|kill|pthread_kill\w*|libc_message\w*|malloc_printerr|fortify_fail"
    r"|chk_fail|stack_chk_fail|assert_fail\w*|gnu_cxx::.*|cxxabiv1::.*|cxa_(?:throw|rethrow)|std::terminate\b.*"
    r"|std::__throw_.*)"
)


def native_frames(text: str) -> list[str]:
    """Functions of the thread that failed, innermost first; none where there is no such stack.

    That is the thread with a signal handler on its stack, and what is below the handler; where the signal met
    no handler, the thread that gdb says took it, which in a core file is thread 1.

    Args:
        text: What `thread apply all bt` or `bt` printed.
    """
    threads: dict[int, list[str]] = {}
    number = took = 1
    for line in text.splitlines():
        if match := _THREAD.match(line):
            number = int(match[1])
            took = number if match["took"] else took
        elif match := _FRAME.match(line):
            threads.setdefault(number, []).append(_function(match["name"]))
    if not threads:
        return []
    with_handler = next((stack for stack in threads.values() if _HANDLER in stack), None)
    failed = with_handler or threads.get(took) or next(iter(threads.values()))
    if _HANDLER in failed:
        # The outermost: while faulthandler prints, a second signal may arrive.
        failed = failed[len(failed) - failed[::-1].index(_HANDLER) :]
    failed = [name for name in failed if name != "??"]
    while failed and _ABORTING.match(failed[0]):
        failed = failed[1:]
    return failed


def _function(text: str) -> str:
    if text.startswith(_HANDLER):
        return _HANDLER
    text = _PLACE.sub("", text)
    return text[: _arguments_begin(text)].strip()


def _arguments_begin(text: str) -> int:
    """Where ` (x=1, y=...)` at the end of a frame begins; its length if there is none."""
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth <= 0:
            is_list = text[position] == "(" and position > 0 and text[position - 1] == " "
            return position if is_list else len(text)
    return len(text)
