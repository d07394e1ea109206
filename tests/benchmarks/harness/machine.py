"""What it was measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe() -> dict[str, str]:
    return {
        "processor": processor(),
        "processors": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"Linux {platform.release().partition('-')[0]}, {platform.machine()}",
    }


def processor() -> str:
    """Its name, with family and model where a virtual machine hides the rest."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    name = fields.get("model name", platform.machine())
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name + (", in a virtual machine" if "hypervisor" in fields.get("flags", "").split() else "")


def slug(machine: dict[str, str]) -> str:
    """A name for files: one for each kind of processor and number of them, so that no page mixes two."""
    name, _, details = machine["processor"].replace("(R)", "").partition("(")
    words = re.findall(r"[a-z0-9]+", name.lower())
    family_and_model = re.findall(r"\d+", details)
    return "-".join([*words, *family_and_model, machine["processors"]])
