"""Reading command lines: the simple commands of a shell text, the options of a launcher. Pure, and forgiving."""

_KEYWORDS = frozenset(("if", "then", "elif", "else", "do", "while", "until", "time", "!", "fi", "done", "esac", "in"))
_BREAKS = ";&|\n(){}"


def simple_commands(text):
    """The simple commands of a shell text, as lists of words without their quotes; comments and here-documents go.

    Expansions stay as they are written (`$N`). What is no shell gives odd words, never an error.
    """
    found, words, word, ends = [], [], None, []
    at, size = 0, len(text)
    while at < size:
        char = text[at]
        if char == "\\":
            if text[at + 1 : at + 2] != "\n":
                word = (word or "") + text[at + 1 : at + 2]
            at += 2
        elif char in "'\"":
            quoted, at = _quoted(text, at)
            word = (word or "") + quoted
        elif char == "$" and text[at + 1 : at + 2] in ("{", "("):
            stop = _closing(text, at + 1)
            word = (word or "") + text[at:stop]
            at = stop
        elif char == "#" and word is None:
            at = _line_end(text, at)
        elif text.startswith("<<", at) and not text.startswith("<<<", at):
            end, at = _here_word(text, at + 2)
            ends.append(end)
        elif char in _BREAKS and not (char in "{}" and word is not None):
            _finish(found, words, word)
            words, word = [], None
            at += 1
            if char == "\n" and ends:
                at, ends = _after_documents(text, at, ends), []
        elif char in " \t\r":
            if word is not None:
                words.append(word)
            word = None
            at += 1
        else:
            word = (word or "") + char
            at += 1
    _finish(found, words, word)
    return found


def _finish(found, words, word):
    words = words + ([word] if word is not None else [])
    while words and words[0] in _KEYWORDS:
        words = words[1:]
    if words:
        found.append(words)


def _quoted(text, at):
    """`(content, index after it)` of the quoted piece that begins at `at`."""
    mark, pieces = text[at], []
    at += 1
    while at < len(text) and text[at] != mark:
        if mark == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            at += 1
            if text[at : at + 1] == "\n":
                at += 1
                continue
        pieces.append(text[at : at + 1])
        at += 1
    return "".join(pieces), at + 1


def _closing(text, at):
    """The index after the bracket that closes the one at `at`."""
    pairs, depth = {"{": "}", "(": ")"}, 0
    opened, closed = text[at], pairs[text[at]]
    while at < len(text):
        depth += (text[at] == opened) - (text[at] == closed)
        at += 1
        if not depth:
            break
    return at


def _line_end(text, at):
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _here_word(text, at):
    """The word that ends a here-document, and the index after it."""
    at += text[at : at + 1] == "-"
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    start = at
    while at < len(text) and text[at] not in " \t\n;&|<>":
        at += 1
    return text[start:at].strip("'\"\\"), at


def _after_documents(text, at, ends):
    for end in ends:
        while at < len(text):
            stop = _line_end(text, at)
            line, at = text[at:stop], stop + 1
            if line.strip("\t") == end:
                break
    return min(at, len(text))


def expanded(word, environment):
    """A word with plain `$NAME` and `${NAME}` filled in from the environment; other expansions stay."""
    pieces, rest = [], word
    while rest:
        before, dollar, rest = rest.partition("$")
        pieces.append(before)
        if not dollar:
            break
        braced = rest.startswith("{")
        name, end = "", 1 if braced else 0
        while end < len(rest) and (rest[end].isalnum() or rest[end] == "_"):
            name += rest[end]
            end += 1
        closed = not braced or rest[end : end + 1] == "}"
        if name and closed and name in environment:
            pieces.append(environment[name])
            rest = rest[end + braced :]
        else:
            pieces.append("$")
    return "".join(pieces)


class Options:
    """The options of a launcher at the start of its words, up to the first word that is none: the user's script.

    `flags` take no value, every other option takes one. Names are compared with `_` for `-`: `--nproc-per-node` is
    `--nproc_per_node`. `words` is changed in place by `drop` and `put`.
    """

    def __init__(self, words, start, flags=(), flag_starts=()):
        self.words = words
        self.start = start
        self.flags = set(flags)
        self.flag_starts = tuple(flag_starts)
        self.read()

    def read(self):
        """Find the options anew: `{name: (index, number of words, value)}`, and where the script is."""
        self.found = {}
        at = self.start
        while at < len(self.words) and self.words[at].startswith("-") and self.words[at] not in ("-", "--"):
            name, equals, value = self.words[at].partition("=")
            name = _plain(name)
            count = 1
            if not equals and not self._is_flag(name):
                count = 2
                value = self.words[at + 1] if at + 1 < len(self.words) else ""
            self.found[name] = (at, count, value)
            at += count
        self.script = min(at, len(self.words))

    def _is_flag(self, name):
        return name in self.flags or bool(self.flag_starts and name.startswith(self.flag_starts))

    def get(self, *names):
        """The value of the first of these options that is there, or None."""
        return next((self.found[name][2] for name in names if name in self.found), None)

    def has(self, *names):
        return any(name in self.found for name in names)

    def drop(self, *names):
        """Take these options away."""
        for name in names:
            while name in self.found:
                at, count, _ = self.found[name]
                del self.words[at : at + count]
                self.read()

    def put(self, name, value, *instead):
        """Set an option, where it stands or in front; `instead` are other names of it."""
        self.drop(name, *instead)
        self.words.insert(self.start, "{}={}".format(name, value))
        self.read()


def _plain(name):
    """`--nproc-per-node` as `--nproc_per_node`. Pure."""
    return name if not name.startswith("--") else "--" + name[2:].replace("-", "_")
