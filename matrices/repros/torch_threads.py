"""Convolutions on the CPU from several threads of one process corrupt the heap.

The threads are the request handlers of a model server: each runs forward passes of one shared small
network, on pictures of different sizes. Broken releases die of SIGSEGV or SIGABRT ("corrupted size
vs. prev_size"), the sooner the more threads there are.

usage: torch_threads.py THREADS SECONDS
"""

import sys
import threading
import time

import torch
import torch.nn.functional as functional
from torch import nn

SIDES = (32, 40, 48, 56, 64)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same_shape = inputs == outputs and stride == 1
        self.shortcut = None if same_shape else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def make_network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3),
        Residual(16, 32, 1),
        Residual(32, 64, 2),
        Residual(64, 64, 1),
        nn.Conv2d(64, 16, 4, 2, 1),
        nn.Conv2d(16, 8, 5, 1, 2),
    ).eval()


def handle_requests(network, first, until):
    request = first
    with torch.no_grad():
        while time.time() < until:
            side = SIDES[request % len(SIDES)]
            network(torch.rand(1, 3, side, side))
            request += 1


def main():
    threads, seconds = int(sys.argv[1]), float(sys.argv[2])
    torch.manual_seed(0)
    network = make_network()
    until = time.time() + seconds
    handlers = [
        threading.Thread(target=handle_requests, args=(network, first, until)) for first in range(threads)
    ]
    for handler in handlers:
        handler.start()
    for handler in handlers:
        handler.join()


if __name__ == "__main__":
    main()
