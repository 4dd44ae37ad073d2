"""A job's log as a terminal or a file should get it: bytes in, harmless text out, piece by piece.

Progress bars that redraw their line with a carriage return keep only the last drawing; colours stay on a terminal;
every other escape sequence and control character is removed; bytes that are not UTF-8 become U+FFFD. Sequences and
characters may be cut anywhere between two pieces.
"""

from __future__ import annotations

import codecs
import re

# The next thing that is not plain text: a control character, C1 code, or mark that turns the reading direction.
_SPECIAL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PLAIN = bytes([9, 10, *range(0x20, 0x7F)])  # most logs are nothing else
_SGR = re.compile(r"[0-9;:]*m")
_CSI = re.compile("([\x30-\x3f]*)([\x20-\x2f]*)([\x40-\x7e])?")
# Device and operating system commands end with BEL or ST; a line end or overlong one is a broken sequence.
_STRING_END = re.compile("[\x07\x9c\n]|\x1b\\\\|\x1b")
_STRING_STARTS = "]PX^_"
_LONGEST_SEQUENCE = 4096


class LogView:
    """Cleans the log of one attempt. `terminal`: keep colours; show unfinished lines that may yet be redrawn."""

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cut = ""  # an escape sequence whose end has not come yet
        self._line: list[str] = []  # the unfinished line as it stands, without what was shown of it already
        self._shown = False  # a part of the unfinished line was shown
        self._returned = False  # a carriage return stands before whatever comes next
        self._redrawn = False  # the unfinished line has been redrawn: in a file only its last drawing counts
        self._out: list[str] = []
        self._coloured = False

    def feed(self, data: bytes) -> str:
        """The text to show for the next bytes."""
        if data.translate(None, _PLAIN) or self._cut or self._returned or self._decoder.getstate()[0]:
            self._scan(self._cut + self._decoder.decode(data))
        else:
            self._pass(data.decode("ascii"))
        self._show_unfinished(last=False)
        return self._take()

    def close(self) -> str:
        """The rest: an unfinished line, and the end of colours."""
        self._scan(self._decoder.decode(b"", final=True))
        self._show_unfinished(last=True)
        return self._take() + ("\x1b[0m" if self._coloured else "")

    def _pass(self, text: str) -> None:
        """What `_scan` does with text in which nothing but line ends is special, many times as quick."""
        if text and not self._line and not self._redrawn:  # nothing is held back of it
            self._out.append(text)
            self._shown = not text.endswith("\n")
            return
        lines, end, rest = text.rpartition("\n")
        if end:
            self._line.append(lines)
            self._end_line()
        if rest:
            self._line.append(rest)

    def _take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def _scan(self, text: str) -> None:
        self._cut = ""
        place = 0
        while place < len(text):
            found = _SPECIAL.search(text, place)
            end = found.start() if found else len(text)
            if end > place:
                self._print(text[place:end])
            if found is None:
                return
            place = self._special(text, found.start())

    def _special(self, text: str, place: int) -> int:
        """Deal with the special character at `place`; returns where to go on."""
        char = text[place]
        if char == "\n":
            self._end_line()
        elif char == "\r":
            self._returned = True
        elif char == "\b":
            self._rub_out()
        elif char in "\x1b\x9b":
            return self._escape(text, place)
        return place + 1

    def _print(self, text: str) -> None:
        if self._returned:
            self._start_over()
        self._line.append(text)

    def _start_over(self) -> None:
        """Forget the unfinished line: the text that follows a carriage return is drawn over it."""
        self._returned = False
        self._redrawn = True
        self._line.clear()
        if self._shown:
            self._out.append("\r\x1b[K" if self._terminal else "\n")
            self._shown = False

    def _rub_out(self) -> None:
        if self._line and not self._line[-1].startswith("\x1b"):
            self._line[-1] = self._line[-1][:-1]
            if not self._line[-1]:
                self._line.pop()
        elif self._shown and self._terminal and not self._line:
            self._out.append("\b")

    def _end_line(self) -> None:
        self._out.extend(self._line)
        self._out.append("\n")
        self._line.clear()
        self._shown = self._returned = self._redrawn = False

    def _show_unfinished(self, *, last: bool) -> None:
        """Show what there is of the line, so that a prompt without a line end is seen; a bar in a file waits."""
        if self._line and (last or self._terminal or not self._redrawn):
            self._out.extend(self._line)
            self._line.clear()
            self._shown = True

    def _escape(self, text: str, place: int) -> int:
        """Pass over the escape sequence at `place`, or keep it if it is a colour; returns where to go on."""
        start = place + 1
        if text[place] == "\x1b":
            if start >= len(text):
                return self._wait(text, place)
            kind = text[start]
            if kind in _STRING_STARTS:
                return self._string(text, place)
            if kind != "[":
                return self._short(text, place)
            start += 1
        match = _CSI.match(text, start)
        assert match is not None  # it matches the empty text
        if match.group(3) is None:
            return self._wait(text, place) if match.end() == len(text) else match.end()
        body = match.group()
        if self._terminal and _SGR.fullmatch(body):
            self._coloured = True
            self._print(f"\x1b[{body}")
        return match.end()

    def _string(self, text: str, place: int) -> int:
        end = _STRING_END.search(text, place + 2)
        if end is None:
            return self._wait(text, place)
        if end.start() - place > _LONGEST_SEQUENCE:
            return place + 1
        if end.group() == "\x1b":
            if end.end() == len(text):
                return self._wait(text, place)
            return end.start()  # another sequence begins: this one was broken off
        return end.start() if end.group() == "\n" else end.end()

    def _short(self, text: str, place: int) -> int:
        """ESC, intermediate characters, one final character."""
        end = place + 1
        while end < len(text) and "\x20" <= text[end] <= "\x2f":
            end += 1
        if end >= len(text):
            return self._wait(text, place)
        return end + 1 if "\x30" <= text[end] <= "\x7e" else end

    def _wait(self, text: str, place: int) -> int:
        """Keep an unfinished sequence for the next piece, unless it is too long to be one; then only ESC goes."""
        if len(text) - place > _LONGEST_SEQUENCE:
            return place + 1
        self._cut = text[place:]
        return len(text)
