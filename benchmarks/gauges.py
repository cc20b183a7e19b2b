"""Clocks and memory: how a turn of ``speed.py`` is measured."""

import ctypes
import gc
import sys
import time
from pathlib import Path

import torch

from skdgp.inference.steps import Stepper


def clock(device):
    """Seconds, once the device has finished."""
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(run, device, n=1, *, unit="ms a step", warm_up=None):
    """Turns that time ``n`` units at once; ``run`` itself warms up, unless something smaller does."""

    def turn(repeat):
        start = clock(device)
        run()
        return {unit: 1e3 * (clock(device) - start) / n}

    (warm_up or run)()
    return turn


class EnoughSteps(Exception):
    """Ends a training loop from inside."""


def first_steps(run, n_steps, device, on_first=lambda: None):
    """When a training began, and when each of its first ``n_steps + 1`` steps ended."""
    times = [clock(device)]

    def after_step():
        times.append(clock(device))
        if len(times) == 2:
            on_first()
        if len(times) == n_steps + 2:
            raise EnoughSteps

    step = Stepper.step

    def watched(*args):
        loss = step(*args)
        after_step()
        return loss

    Stepper.step = watched
    try:
        run()
    except EnoughSteps:
        return times
    finally:
        Stepper.step = step
    raise RuntimeError(f"Training made {len(times) - 1} steps, not {n_steps + 1}: let it make more passes.")


def step_memory(run, n_steps, device):
    """Peaks of the first steps of a training, in MiB: beside its table, and of a step beside what stays."""
    forget_peak(device)
    before = peak_memory()
    marks = []

    def after_first():
        marks.append(peak_memory())
        forget_peak(device)
        marks.append(peak_memory())

    first_steps(run, n_steps, device, after_first)
    first, stays = marks
    memory = {"MiB beside the table": max(first, peak_memory()) - before, "MiB a step": peak_memory() - stays}
    return memory | device_peak(device)


def peak_memory():
    """Most MiB that this process has held."""
    try:
        # Unlike ru_maxrss, it does not start from the peak of the process that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except FileNotFoundError:
        import resource  # which Windows lacks

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def device_peak(device):
    """The same of an accelerator, by measure."""
    return {} if device == "cpu" else {"MiB on the device": torch.cuda.max_memory_allocated(device) / 2**20}


def forget_peak(device):
    """Give free memory back and start peaks anew, so that they show what follows; that of the process on Linux only."""
    gc.collect()
    if torch.cuda.is_initialized():  # otherwise this would start CUDA, which takes memory
        torch.cuda.reset_peak_memory_stats(device)
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # glibc has it
        Path("/proc/self/clear_refs").write_text("5")


def peaks(device, before):
    """Peaks so far, that of the process beyond ``before`` MiB."""
    return {"MiB": peak_memory() - before} | device_peak(device)
