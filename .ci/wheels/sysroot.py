"""Makes GCC build for an older system than this one, as the toolsets of Red Hat do: a folder with the headers and the
libraries to link with, and a toolchain file for CMake that uses it.

    python .ci/wheels/sysroot.py FOLDER [--arch aarch64] [--glibc 2.28] [--glibcxx 3.4.24]

The C library's headers, and libraries that define its symbols up to a version but hold no code, come from Zig (package
``ziglang``), which has those of every glibc. Of libstdc++ a library without code is made here, with the symbols up to a
version; newer ones are linked statically, and hidden. So the compiler and the C++ ABI stay those of GCC, with which
users build libraries of operators. What an old system does not have fails to link.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# What objects of the newer static libstdc++ and its headers need of a newer glibc.
COMPAT_C = """\
/* No: then libstdc++ counts references atomically always. */
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
"""
# In headers of libstdc++, for a glibc before 2.30.
COMPAT_H = """\
#if defined(__cplusplus)
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK
#endif
"""
TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {arch})
set(CMAKE_C_COMPILER {gcc})
set(CMAKE_CXX_COMPILER {gxx})
set(CMAKE_C_FLAGS_INIT "{c_flags}")
set(CMAKE_CXX_FLAGS_INIT "{cxx_flags}")
foreach(kind IN ITEMS SHARED MODULE EXE)
  set(CMAKE_${{kind}}_LINKER_FLAGS_INIT "-L{lib} -Wl,--exclude-libs,ALL -Wl,-s")
endforeach()
"""
# Folders of headers in Zig, from general to special.
ZIG_HEADERS = {
    "x86_64": ("any-linux-any", "x86-linux-any", "generic-glibc", "x86-linux-gnu"),
    "aarch64": ("any-linux-any", "aarch64-linux-any", "generic-glibc", "aarch64-linux-gnu"),
}
# They are part of libc.so.6 in the headers' glibc, and libraries of their own before.
PARTS_OF_LIBC = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1")


def output(*command: str | Path, **more: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def copy_headers(arch: str, include: Path) -> None:
    import ziglang

    source = Path(ziglang.__file__).parent / "lib" / "libc" / "include"
    for name in ZIG_HEADERS[arch]:
        if (source / name).is_dir():
            shutil.copytree(source / name, include, dirs_exist_ok=True)
    # libstdc++ asks whether it exists; Zig's says that it did not before glibc 2.32.
    (include / "sys" / "single_threaded.h").unlink()


def copy_c_library(arch: str, glibc: str, lib: Path, work: Path) -> None:
    """The libraries that Zig makes in order to link for a glibc."""
    (work / "empty.c").write_text("int headrace_empty(void) { return 0; }\n")
    output(
        *(sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.{glibc}"),
        *("-shared", work / "empty.c", "-o", work / "empty.so", "-lm", "-lpthread", "-ldl", "-lrt"),
        env={**os.environ, "ZIG_LOCAL_CACHE_DIR": str(work / "zig"), "ZIG_GLOBAL_CACHE_DIR": str(work / "zig")},
    )
    (stubs,) = {path.parent for path in (work / "zig").rglob("libc.so.6")}
    for path in stubs.glob("lib*.so.*"):
        shutil.copy(path, lib)
    (nonshared,) = (work / "zig").rglob("libc_nonshared.a")
    shutil.copy(nonshared, lib)
    shutil.copy(lib / "libm.so.6", lib / "libm.so")
    parts = " ".join(part for part in PARTS_OF_LIBC if (lib / part).exists())
    linker = "libld.so.2" if (lib / "libld.so.2").exists() else ""
    (lib / "libc.so").write_text(
        f"GROUP ( libc.so.6 libheadrace_compat.a libc_nonshared.a AS_NEEDED ( {parts} {linker} ) )\n"
    )
    for part in PARTS_OF_LIBC:
        name = part.split(".so")[0]
        (lib / f"{name}.so").write_text("GROUP ( libc.so )\n")


def symbols(library: str) -> list[tuple[str, str, str, str]]:
    """Name, version, type and size of what a library defines; of symbols with several versions, the default one."""
    found = []
    for line in output("readelf", "-W", "--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[6] not in ("UND", "ABS") and "@@" in fields[7]:
            name, _, node = fields[7].partition("@@")
            found.append((name, node, fields[3], fields[2]))
    return found


def copy_cxx_library(gcc: str, gxx: str, newest: str, lib: Path, work: Path) -> None:
    """libstdc++.so.6 without code, and without what came after ``newest``, which the static one has."""
    limits = {"GLIBCXX": newest, "CXXABI": {"3.4.24": "1.3.11"}[newest]}
    nodes: dict[str, list[str]] = {}
    source = []
    for name, node, kind, size in symbols(output(gxx, "-print-file-name=libstdc++.so.6").strip()):
        match = re.fullmatch(r"(GLIBCXX|CXXABI)_([\d.]+)", node)
        if match is None or version(match[2]) > version(limits[match[1]]):
            continue
        nodes.setdefault(node, []).append(name)
        thread = kind == "TLS"
        section = ".tbss" if thread else ".text" if kind in ("FUNC", "IFUNC") else ".bss"
        flags = '"awT",@nobits' if thread else '"ax",@progbits' if section == ".text" else '"aw",@nobits'
        elf_type = "tls_object" if thread else "function" if section == ".text" else "object"
        source.append(
            f'.section {section},{flags}\n.globl "{name}"\n.type "{name}",@{elf_type}\n'
            f'.size "{name}",{int(size, 0)}\n"{name}": .skip 8\n'
        )
    script, before = "", ""
    for node in sorted(nodes, key=lambda node: (node.split("_")[0], version(node.split("_")[1]))):
        names = " ".join(f'"{name}";' for name in nodes[node])
        script += f"{node} {{ global: {names} {'local: *;' if not script else ''} }}{before};\n"
    (work / "libstdc++.s").write_text("\n".join(source))
    (work / "libstdc++.map").write_text(script)
    output(
        *(gcc, "-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6", f"-Wl,--version-script={work / 'libstdc++.map'}"),
        *(work / "libstdc++.s", "-o", lib / "libstdc++.so.6"),
    )
    shutil.copy(output(gxx, "-print-file-name=libstdc++.a").strip(), lib / "libstdc++_nonshared.a")
    (lib / "libstdc++.so").write_text("INPUT ( libstdc++.so.6 libstdc++_nonshared.a )\n")


def compiler_headers(compiler: str, language: str) -> list[str]:
    """The folders of headers that belong to the compiler and its C++ library, not to the C library."""
    done = subprocess.run(
        [compiler, "-x", language, "-E", "-v", os.devnull], check=True, text=True, capture_output=True
    ).stderr
    folders = done.split("#include <...> search starts here:\n")[1].split("End of search list.")[0].split()
    kept = [os.path.realpath(folder) for folder in folders]
    return [folder for folder in kept if "/c++/" in folder or re.search(r"/gcc(-cross)?/", folder)]


def make(folder: Path, arch: str, glibc: str, glibcxx: str) -> Path:
    """Makes the folder. Returns the path of the toolchain file."""
    include, lib, work = folder / "include", folder / "lib", folder / "work"
    for part in (include, lib, work):
        part.mkdir(parents=True, exist_ok=True)
    native = os.uname().machine == arch
    gcc, gxx = (name if native else f"{arch}-linux-gnu-{name}-12" for name in ("gcc", "g++"))
    copy_headers(arch, include)
    copy_c_library(arch, glibc, lib, work)
    copy_cxx_library(gcc, gxx, glibcxx, lib, work)
    (work / "compat.c").write_text(COMPAT_C)
    (include / "headrace_compat.h").write_text(COMPAT_H)
    output(gcc, "-O2", "-fPIC", "-c", work / "compat.c", "-o", work / "compat.o")
    output("ar", "rcs", lib / "libheadrace_compat.a", work / "compat.o")
    flags = {}
    for language, compiler in (("c", gcc), ("c++", gxx)):
        headers = " ".join(f"-isystem {name}" for name in [*compiler_headers(compiler, language), str(include)])
        flags[language] = f"-nostdinc {headers} -D__GLIBC_MINOR__={version(glibc)[1]}"
    toolchain = folder / "toolchain.cmake"
    toolchain.write_text(
        TOOLCHAIN.format(
            arch=arch,
            gcc=gcc,
            gxx=gxx,
            lib=lib,
            c_flags=flags["c"],
            cxx_flags=f"{flags['c++']} -include {include / 'headrace_compat.h'}",
        )
    )
    return toolchain


def main() -> None:
    parser = argparse.ArgumentParser(description="a folder of headers and libraries for an older system")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", choices=sorted(ZIG_HEADERS), default=os.uname().machine)
    parser.add_argument("--glibc", default="2.28")
    parser.add_argument("--glibcxx", default="3.4.24", choices=["3.4.24"])
    arguments = parser.parse_args()
    print(make(arguments.folder.resolve(), arguments.arch, arguments.glibc, arguments.glibcxx))


if __name__ == "__main__":
    main()
