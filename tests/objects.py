#!/usr/bin/python3
"""What the object files of an x86-64 build must not contain.

usage: objects.py BUILD_FOLDER
       objects.py --self-test [COMPILER]   show that each rule can fail

Rules:
  * outside src/kernels/cpu no fused multiply-add and no 256- or 512-bit register: a contracted
    a * b + c changes bits, and the baseline is x86-64-v2;
  * in src/kernels/cpu no weak function outside a target's own namespace (N_AVX2, N_SSE4, ...):
    the linker keeps one copy of a weak function for the whole program, and it may be the one
    compiled for the widest target;
  * in pure modules no mutable static data.
"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from layering import Table

ROOT = Path(__file__).resolve().parents[1]
TARGET_UNITS = "/src/kernels/cpu/"
WIDE_INSTRUCTION = re.compile(r"\bvfn?m(?:add|sub)\w*|%[yz]mm\d+")
TARGET_NAMESPACE = re.compile(r"\d+N_[A-Z0-9_]+")
# Section and name of each symbol in `objdump -t`: address, seven flag characters, section, size.
SYMBOL = re.compile(r"^[0-9a-f]{16} (.{7}) (\S+)\t[0-9a-f]{16} (?:\.hidden )?(\S+)$", re.M)
MUTABLE_SECTION = re.compile(r"\.(t?bss|t?data)(?!\.rel\.ro)")
CONSTANT_NAME = re.compile(r"(^|::)k[A-Z]\w*$")  # the naming rule
SECTION_OR_FUNCTION = re.compile(r"[dF]")  # flags; a thread_local carries no object flag


def objdump(flag, path):
    command = ["objdump", flag, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def demangled(name):
    command = ["c++filt", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def symbols(path):
    return SYMBOL.findall(objdump("-t", path))


def wide_code(path):
    """One message per function with an instruction beyond the baseline."""
    errors, function, reported = [], "?", None
    for line in objdump("-d", path).splitlines():
        label = re.match(r"[0-9a-f]{16} <(.*)>:", line)
        if label:
            function = label[1]
            continue
        wide = WIDE_INSTRUCTION.search(line)
        if wide and function != reported:
            errors.append(f"{path}: {wide[0]} in {demangled(function)}")
            reported = function
    return errors


def stray_weak_functions(path):
    return [
        f"{path}: weak function outside a target namespace: {demangled(name)}"
        for flags, section, name in symbols(path)
        if "w" in flags and section.startswith(".text") and not TARGET_NAMESPACE.search(name)
    ]


def is_constant(name):
    """Constants may lie in a writable section: those that the compiler initialises late, and its own
    references (DW.ref) and guards (_ZGV; what is guarded is reported itself)."""
    return name.startswith(("_ZGV", "DW.ref.")) or CONSTANT_NAME.search(demangled(name))


def mutable_statics(path):
    return [
        f"{path}: mutable static data in a pure module: {demangled(name)}"
        for flags, section, name in symbols(path)
        if MUTABLE_SECTION.match(section)
        and not SECTION_OR_FUNCTION.search(flags)
        and not is_constant(name)
    ]


def check(build, pure):
    """Messages about the objects of the libraries and the program under `build`."""
    objects = [
        path
        for path in sorted(build.rglob("*.o"))
        if re.search(r"/CMakeFiles/(mr_\w+|millrace)\.dir/", str(path))
    ]
    if not objects:
        return [f"{build}: no object files"]
    errors = []
    for path in objects:
        if TARGET_UNITS in str(path):
            errors += stray_weak_functions(path)
        else:
            errors += wide_code(path)
        module = re.search(r"/CMakeFiles/mr_(\w+)\.dir/", str(path))
        if module and module[1] in pure:
            errors += mutable_statics(path)
    return errors


class SelfTest(unittest.TestCase):
    compiler = "g++"

    def errors(self, unit, code, *flags):
        """Compiles `code` as the object of `unit` (MODULE/file) and checks that build."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "source.cc"
            source.write_text(code)
            module = unit.split("/")[0]
            target = Path(folder) / f"CMakeFiles/mr_{module}.dir/src/{unit}.cc.o"
            target.parent.mkdir(parents=True)
            command = [self.compiler, "-std=c++20", "-O2", "-march=x86-64-v2", *flags]
            subprocess.run([*command, "-c", str(source), "-o", str(target)], check=True)
            return "\n".join(check(Path(folder), pure={"sampler"}))

    MULTIPLY_ADD = "float f(float a, float b, float c) { return a * b + c; }"
    SUM = "void f(float* a) { for (int i = 0; i < 4096; ++i) a[i] += 1; }"
    WEAK = "struct S { S(); }; inline __attribute__((noinline)) int g(int x) { return x * x; }\n"

    def test_baseline_code_passes(self):
        self.assertEqual(self.errors("model/forward", self.MULTIPLY_ADD), "")

    def test_a_contracted_multiply_add_is_found(self):
        found = self.errors("model/forward", self.MULTIPLY_ADD, "-mfma", "-ffp-contract=fast")
        self.assertRegex(found, r"vfmadd\w+ in f\(float, float, float\)")

    def test_wide_registers_are_found(self):
        self.assertIn("%ymm", self.errors("model/forward", self.SUM, "-mavx2", "-O3"))

    def test_target_units_may_be_wide(self):
        code = "namespace N_AVX2 { " + self.MULTIPLY_ADD + "}"
        self.assertEqual(self.errors("kernels/cpu/a", code, "-mfma", "-ffp-contract=fast"), "")

    def test_a_weak_function_of_a_target_unit_is_found(self):
        found = self.errors("kernels/cpu/a", self.WEAK + "int h(int x) { return g(x); }")
        self.assertIn("outside a target namespace: g(int)", found)

    def test_a_weak_function_in_a_target_namespace_passes(self):
        code = "namespace N_SSE4 {" + self.WEAK + "int h(int x) { return g(x); } }"
        self.assertEqual(self.errors("kernels/cpu/a", code), "")

    def test_a_mutable_static_of_a_pure_module_is_found(self):
        for code in (
            "int next() { static int n; return ++n; }",
            "int n = 7; int next() { return ++n; }",
            "thread_local int n; int next() { return ++n; }",
        ):
            self.assertIn("mutable static", self.errors("sampler/sampler", code))

    def test_constants_of_a_pure_module_pass(self):
        code = 'const char* f(int i) { static const char* const k[] = {"a", "b"}; return k[i]; }'
        self.assertEqual(self.errors("sampler/sampler", code, "-fPIC"), "")
        code = "#include <string>\n#include <string_view>\nextern const std::string_view kNames[];"
        code += 'const std::string_view kNames[] = {"a"}; std::string f() { return {kNames[0].data()}; }'
        self.assertEqual(self.errors("sampler/sampler", code, "-fPIC"), "")

    def test_mechanism_modules_may_have_statics(self):
        self.assertEqual(self.errors("sys/clock", "int next() { static int n; return ++n; }"), "")

    def test_an_empty_build_is_no_success(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("no object files", check(Path(folder), set())[0])


def main():
    if sys.argv[1:2] == ["--self-test"]:
        SelfTest.compiler = sys.argv[2] if len(sys.argv) > 2 else "g++"
        unittest.main(argv=sys.argv[:1])
    errors = check(Path(sys.argv[1]), Table((ROOT / "ARCHITECTURE.md").read_text()).pure)
    print("\n".join(errors) if errors else "objects: nothing stray")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
