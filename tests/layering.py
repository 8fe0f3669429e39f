#!/usr/bin/python3
"""Who may include whom: holds every #include under src/ against the module table.

usage: layering.py [ROOT]      check the tree
       layering.py --self-test show that each rule can fail

The table is in ARCHITECTURE.md ("Who may include whom"); what a module really uses is the DEPS of
its millrace_module(...) line in CMakeLists.txt. Rules:
  * DEPS is part of the module's row (mechanism modules may add `sys`), and a row names only
    modules of a lower level, so there is no cycle;
  * a file under src/NAME/ includes NAME, `base` and DEPS, nothing else;
  * a row entry with a slash allows that one header of the module and no other;
  * pure modules include no threads, clocks, files, sockets or logging; *_test.cc and test_*.h may;
  * every module has a row and every row has a module.
"""
import re
import sys
import unittest
from pathlib import Path

IMPURE_HEADERS = re.compile(
    r"thread|mutex|shared_mutex|condition_variable|atomic|future|semaphore|barrier|latch|stop_token"
    r"|chrono|ctime|time\.h|fstream|filesystem|iostream|unistd\.h|fcntl\.h|poll\.h|netdb\.h"
    r"|pthread\.h|(sys|net|netinet|arpa|linux)/.*|spdlog/.*|boost/(asio|beast|thread|filesystem).*"
)


EXTERNAL = {"hwy"}  # a library that is spelled with quotes


def is_test(path):
    name = Path(path).name
    return name.endswith("_test.cc") or name.startswith("test_")


class Table:
    """The rows of ARCHITECTURE.md's include table and its list of pure modules."""

    def __init__(self, markdown):
        self.level, self.allowed = {}, {}
        section = markdown.split("## Who may include whom", 1)
        if len(section) != 2:
            raise SystemExit("ARCHITECTURE.md: no section 'Who may include whom'")
        section = section[1].split("\n## ", 1)[0]
        for line in section.splitlines():
            row = re.match(r"\| (\d+) \| ([^|]+) \| ([^|]+) \|", line)
            if row:
                for module in re.findall(r"`([^`]+)`", row[2]):
                    self.level[module] = int(row[1])
                    self.allowed[module] = set(re.findall(r"`([^`]+)`", row[3]))
        pure = re.search(r"\*\*Pure\*\* modules \(([^)]*)\)", section)
        self.pure = set(re.findall(r"\w+", pure[1])) if pure else set()


def declared_modules(cmake):
    """{module: set of DEPS} from the millrace_module(...) lines."""
    cmake = re.sub(r"#.*", "", cmake)
    modules = {}
    for body in re.findall(r"millrace_module\(([^)]*)\)", cmake):
        words = body.split()
        section, deps = None, set()
        for word in words[1:]:
            if word in ("DEPS", "LIBS", "EXCLUDE"):
                section = word
            elif section == "DEPS":
                deps.add(word)
        modules[words[0]] = deps
    return modules


def check_table(table, modules):
    errors = []
    for module, entries in table.allowed.items():
        if module not in modules and module != "apps":
            errors.append(f"ARCHITECTURE.md: `{module}` has a row and no millrace_module line")
        for entry in sorted(entries):
            other = entry.split("/")[0]
            if other not in table.level:
                errors.append(f"ARCHITECTURE.md: `{module}` names `{other}`, which has no row")
            elif table.level[other] >= table.level[module]:
                errors.append(f"ARCHITECTURE.md: `{module}` names `{other}` of no lower level")
    for module, deps in modules.items():
        if module not in table.allowed:
            errors.append(f"CMakeLists.txt: module {module} has no row in ARCHITECTURE.md")
            continue
        allowed = {entry.split("/")[0] for entry in table.allowed[module]} | {"base"}
        if module not in table.pure:
            allowed.add("sys")
        for dep in sorted(deps - allowed):
            errors.append(f"CMakeLists.txt: {module} may not depend on {dep} (ARCHITECTURE.md)")
    return errors


def check_file(path, text, table, modules):
    """`path` is relative to the root: src/MODULE/..."""
    module = Path(path).parts[1]
    if module not in modules:
        return [f"{path}: folder src/{module} is no module of CMakeLists.txt"]
    errors = []
    allowed = modules[module] | {module, "base"}
    single_headers = {e for e in table.allowed.get(module, ()) if "/" in e}
    restricted = {e.split("/")[0] for e in single_headers}
    for number, line in enumerate(text.splitlines(), 1):
        own = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if own:
            header, other = own[1], own[1].split("/")[0]
            if ".." in header or "/" not in header:
                errors.append(f'{path}:{number}: "{header}" is not rooted at src/')
            elif other not in allowed | EXTERNAL:
                errors.append(f'{path}:{number}: {module} may not include "{header}"')
            elif other in restricted and header not in single_headers:
                only = ", ".join(sorted(single_headers))
                errors.append(f'{path}:{number}: "{header}": {module} may include only {only}')
        system = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
        if system and module in table.pure and not is_test(path):
            if IMPURE_HEADERS.fullmatch(system[1]):
                errors.append(f"{path}:{number}: pure module {module} includes <{system[1]}>")
    return errors


def check(architecture, cmake, files):
    """`files`: {path relative to the root: text}. Returns a list of messages."""
    table, modules = Table(architecture), declared_modules(cmake)
    errors = check_table(table, modules)
    for path, text in sorted(files.items()):
        errors += check_file(path, text, table, modules)
    return errors


def check_tree(root):
    sources = [p for p in (root / "src").rglob("*") if p.suffix in (".h", ".cc", ".inc", ".cu")]
    if not sources:
        return [f"no sources under {root}/src"]
    files = {str(p.relative_to(root)): p.read_text() for p in sources}
    return check(
        (root / "ARCHITECTURE.md").read_text(), (root / "CMakeLists.txt").read_text(), files
    )


class SelfTest(unittest.TestCase):
    ARCHITECTURE = """
## Who may include whom
| level | module | may include |
|---|---|---|
| 0 | `base` | — |
| 1 | `sys` `plan` | — |
| 2 | `engine` | `plan` |
| 3 | `front` | `engine/engine.h` |

**Pure** modules (`base plan`): decide.
"""
    CMAKE = """
millrace_module(base DEPS)
millrace_module(sys DEPS)
millrace_module(plan DEPS LIBS Boost::json)
millrace_module(engine DEPS plan sys)  # mechanism
millrace_module(front DEPS engine)
"""
    FILES = {
        "src/plan/plan.cc": '#include "plan/plan.h"\n#include "base/status.h"\n#include <vector>\n',
        "src/plan/plan_test.cc": "#include <fstream>\n",
        "src/engine/engine.cc": '#include "plan/plan.h"\n#include "sys/file.h"\n#include <mutex>\n',
        "src/front/front.cc": '#include "engine/engine.h"\n',
    }

    def errors(self, architecture=ARCHITECTURE, cmake=CMAKE, **changed):
        files = dict(self.FILES)
        for name, text in changed.items():
            files[f"src/{name}/{name}.cc"] = text
        return "\n".join(check(architecture, cmake, files))

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.errors(), "")

    def test_an_include_outside_deps_is_found(self):
        self.assertIn('may not include "engine/', self.errors(plan='#include "engine/engine.h"'))

    def test_sys_must_be_listed(self):
        self.assertIn('may not include "sys/', self.errors(front='#include "sys/file.h"'))

    def test_a_single_header_edge_admits_no_other_header(self):
        self.assertIn("may include only", self.errors(front='#include "engine/executor.h"'))

    def test_a_relative_include_is_found(self):
        self.assertIn("not rooted", self.errors(plan='#include "plan.h"'))
        self.assertIn("not rooted", self.errors(plan='#include "../sys/file.h"'))

    def test_a_pure_module_with_a_thread_is_found(self):
        for header in ("thread", "atomic", "chrono", "fstream", "sys/socket.h", "spdlog/spdlog.h"):
            self.assertIn(f"includes <{header}>", self.errors(plan=f"#  include <{header}>"))

    def test_a_dependency_outside_the_table_is_found(self):
        cmake = self.CMAKE.replace("sys DEPS", "sys DEPS plan")
        self.assertIn("sys may not depend on plan", self.errors(cmake=cmake))

    def test_a_pure_module_may_not_depend_on_sys(self):
        cmake = self.CMAKE.replace("plan DEPS", "plan DEPS sys")
        self.assertIn("plan may not depend on sys", self.errors(cmake=cmake))

    def test_a_cycle_in_the_table_is_found(self):
        rows = self.ARCHITECTURE.replace("`sys` `plan` | —", "`sys` `plan` | `engine`")
        self.assertIn("of no lower level", self.errors(architecture=rows))

    def test_a_module_without_row_and_a_row_without_module_are_found(self):
        extra = self.CMAKE + "millrace_module(extra DEPS)\n"
        self.assertIn("module extra has no row", self.errors(cmake=extra))
        fewer = self.CMAKE.replace("millrace_module(front DEPS engine)\n", "")
        self.assertIn("`front` has a row", self.errors(cmake=fewer))
        self.assertIn("is no module", self.errors(cmake=fewer))


def main():
    if sys.argv[1:] == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    errors = check_tree(root)
    print("\n".join(errors) if errors else "layering: every include is allowed")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
