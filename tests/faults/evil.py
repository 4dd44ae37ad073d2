#!/usr/bin/env python3
"""An interpreter of a hostile host: it speaks the beginning of the protocol, then answers as `$EVIL` (a file) says.

The file holds JSON: `{"op": answer, …, "*": answer}`. An answer is a list of steps: `["J", value]` a JSON frame,
`["raw", hex]` bytes, `["text", "…"]` the payload of a J frame as it stands, `["flood", kind]` frames without end (of
kind 0: B frames with nothing in them), `["drip", hex]` a byte at a time, `["hang"]`, `["end"]`.
"""

import json
import os
import struct
import sys
import time

WORDS = {"op", "get", "each", "done"}


def write(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def frame(kind, payload):
    return struct.pack(">cI", kind, len(payload)) + payload


def exactly(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


def request():
    while True:
        kind, length = struct.unpack(">cI", exactly(5))
        payload = exactly(length)
        if kind == b"J":
            message = json.loads(payload)
            if WORDS & set(message):
                return message


def perform(step):
    word = step[0]
    if word == "J":
        write(frame(b"J", json.dumps(step[1]).encode()))
    elif word == "text":
        write(frame(b"J", step[1].encode()))
    elif word == "raw":
        write(bytes.fromhex(step[1]))
    elif word == "B":
        write(frame(b"B", bytes.fromhex(step[1])))
    elif word == "E":
        write(frame(b"E", b""))
    elif word == "flood":
        some = frame(b"B", b"") * 1000 if step[1] == "0" else b""
        while True:
            write(some or frame(step[1].encode(), b"{}" if step[1] == "J" else b"x" * 65536))
    elif word == "drip":
        for byte in bytes.fromhex(step[1]) * 1000:
            write(bytes([byte]))
            time.sleep(0.2)
    elif word == "end":
        sys.exit(0)
    elif word == "hang":
        time.sleep(600)


def main():
    fence = next(word for word in reversed(sys.argv) if len(word) == 32)  # what is to be asked first may follow it
    write(f"\n{fence}\nH /bin/bash\n".encode())
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "answers.json")) as stream:
        answers = json.load(stream)
    while True:
        message = request()
        word = message.get("op") or ("done" if "done" in message else "get")
        for _ in message.get("each", [0]):
            for step in answers.get(word, answers["*"]):
                perform(step)


if __name__ == "__main__":
    main()
