#!/usr/bin/python3
"""What is installed and packed: complete, and it runs from any place.

usage: install_test.py BINARY [unittest arguments]

BINARY's folder is a finished build.
"""
import ctypes
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

from serving import ROOT, Server

TIMEOUT = 300  # seconds; generous, for machines that do other work
BUILD = None  # set by the command line

# Of everything that a user is told to find.
FILES = """
bin/millrace
include/millrace.h
lib/libmillrace.so
lib/python3/dist-packages/millrace/__init__.py
lib/systemd/system/millrace.service
lib/systemd/system/millrace@.service
share/doc/millrace/README.md
share/doc/millrace/copyright
share/doc/millrace/docs/grafana-dashboard.json
share/doc/millrace/docs/install.md
share/doc/millrace/docs/server.md
share/millrace/models/nano/config.json
share/millrace/models/nano/generation_config.json
share/millrace/models/nano/model-00001-of-00002.safetensors
share/millrace/models/nano/model-00002-of-00002.safetensors
share/millrace/models/nano/tokenizer.json
""".split()


def run(*command, **options):
    result = subprocess.run(
        [str(word) for word in command],
        **{"capture_output": True, "text": True, "timeout": TIMEOUT, **options},
    )
    if result.returncode != 0:
        raise AssertionError(f"{command}: exit {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout


def same_library_dir(name):
    """Debian's multiarch folder, which a build for /usr chooses, is as good as lib."""
    return re.sub(r"^lib/[a-z0-9_]+-linux-gnu[a-z0-9]*/", "lib/", name)


class Installed(unittest.TestCase):
    """cmake --install into a prefix that nothing was configured for."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = Path(cls.folder.name).resolve() / "a prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.program = cls.prefix / "bin" / "millrace"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def files(self):
        return [p for p in sorted(self.prefix.rglob("*")) if not p.is_dir()]

    def test_everything_is_in_its_place_and_nothing_else(self):
        names = {same_library_dir(str(p.relative_to(self.prefix))) for p in self.files()}
        self.assertEqual(set(FILES) - names, set())
        folders = {n.split("/", 1)[0] for n in names}
        self.assertEqual(folders, {"bin", "include", "lib", "share"})
        for name in names:
            self.assertNotRegex(name, r"__pycache__|\.pyc$|\.a$|_test|gtest|/\.")
        self.assertEqual(len([n for n in names if n.startswith(("bin/", "include/"))]), 2)

    def test_links_of_the_documents_lead_to_documents(self):
        for page in (self.prefix / "share/doc/millrace").rglob("*.md"):
            for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
                if (page.parent / target).exists():
                    continue
                # Those into the source tree are for people who have it.
                in_tree = ROOT / page.relative_to(self.prefix / "share/doc/millrace").parent / target
                self.assertTrue(in_tree.exists(), f"{page}: {target}")

    def test_nothing_points_back_into_the_build(self):
        for path in self.files():
            if path.is_symlink():
                self.assertFalse(os.path.isabs(os.readlink(path)), path)
            elif path.suffix in (".service", ".md", ".py", ".h", ".json"):
                self.assertNotIn(str(BUILD), path.read_text(errors="replace"), path)
        for path in [self.program, *self.prefix.rglob("libmillrace.so.0")]:
            self.assertNotRegex(run("readelf", "-d", path), "RPATH|RUNPATH")

    def test_the_program_says_what_it_is(self):
        lines = run(self.program, "--version", cwd="/").splitlines()
        self.assertRegex(lines[0], r"^millrace \d+\.\d+\.\d+$")
        self.assertTrue(any(re.fullmatch(r"compiler \w+ [\d.]+", line) for line in lines), lines)
        ids = [line.split()[1] for line in lines if line.startswith("numerics ")]
        self.assertGreaterEqual(len(ids), 2)
        self.assertEqual(len(set(ids)), 1)
        if (ROOT / ".git").exists():
            self.assertTrue(any(re.fullmatch(r"commit [0-9a-f]{12,40}", line) for line in lines), lines)

    def test_it_serves_the_model_that_came_with_it_from_another_directory(self):
        before = os.getcwd()
        os.chdir("/")
        try:
            server = Server(str(self.program), env={"MILLRACE_API_KEY": "sk-installed"})
        finally:
            os.chdir(before)
        with server:
            self.assertIn(str(self.prefix / "share/millrace/models/nano"), "".join(server.log))
            body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
                    "temperature": 0, "max_tokens": 60}
            self.assertEqual(server.post("/v1/chat/completions", body)[0], 401)
            headers = {"Authorization": "Bearer sk-installed"}
            status, reply = server.post("/v1/chat/completions", body, headers=headers)
            self.assertEqual((status, reply["model"]), (200, "nano"))
            self.assertGreater(reply["usage"]["completion_tokens"], 0)
            status, page = server.get("/", headers={"Accept": "text/html"})
            self.assertEqual(status, 200)
            self.assertIn(b"<html", page)
        self.assertEqual(server.process.returncode, 0)

    def test_the_python_package_finds_the_library_of_its_prefix(self):
        code = ("import millrace, millrace._library as l; print(l.load()._name); "
                "print(millrace.__file__)")
        environment = {**os.environ, "PYTHONPATH": str(self.prefix / "lib/python3/dist-packages")}
        library, module = run(sys.executable, "-c", code, env=environment, cwd="/").splitlines()
        self.assertTrue(module.startswith(str(self.prefix)))
        # Under Debian's multiarch folder the system's loader finds it instead.
        if (self.prefix / "lib/libmillrace.so.0").exists():
            self.assertTrue(library.startswith(str(self.prefix)), library)

    def test_the_header_and_the_library_are_enough_to_build_with(self):
        source = Path(self.folder.name) / "version.c"
        source.write_text('#include <millrace.h>\n#include <stdio.h>\n'
                          'int main(void) { return puts(millrace_version()) < 0; }\n')
        library = next(self.prefix.rglob("libmillrace.so"))
        run("cc", "-std=c99", source, "-I", self.prefix / "include", "-L", library.parent,
            "-lmillrace", "-Wl,-rpath," + str(library.parent), "-o", source.with_suffix(""))
        self.assertRegex(run(source.with_suffix("")), r"^\d+\.\d+\.\d+\n$")


class Units(unittest.TestCase):
    def test_systemd_takes_the_unit_as_it_is(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze here")
        with tempfile.TemporaryDirectory() as folder:
            for name in ["millrace.service", "millrace@b.service"]:
                unit = Path(folder) / name
                text = (ROOT / "packaging/millrace.service").read_text()
                # The program need not be installed where the test runs.
                program = str(BUILD / "millrace")
                unit.write_text(text.replace("ExecStart=millrace ", f"ExecStart={program} "))
                result = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)],
                                        capture_output=True, text=True, timeout=TIMEOUT)
                ours = [line for line in result.stderr.splitlines() if name in line]
                self.assertEqual(ours, [])

    def test_a_restart_can_take_over(self):
        text = (ROOT / "packaging/millrace.service").read_text()
        self.assertIn("\nExecStart=millrace serve --take-over $MILLRACE_FLAGS\n", text)
        self.assertIn("\nUser=millrace\n", text)  # sockets go to the same user only


class FromVllm(unittest.TestCase):
    """The table of flags in docs/from-vllm.md."""

    def test_flags_that_are_the_same_or_accepted_are_there(self):
        page = (ROOT / "docs/from-vllm.md").read_text().split("## Flags")[1].split("##")[0]
        usage = run(BUILD / "millrace", "serve", "--help")
        same, accepted = [], []
        for row in re.findall(r"^\| (.*) \| (.*) \|$", page, re.M):
            flags = re.findall(r"`(--[a-z-]+)", row[0])
            if row[1].startswith("the same"):
                same += flags
            elif row[1].startswith("accepted"):
                accepted += flags
            # What stands in place of it is there, too.
            for flag in re.findall(r"`(--[a-z-]+)", row[1]):
                self.assertRegex(usage, rf"{flag}\b", row)
        self.assertGreater(len(same), 20)
        for flag in same:
            self.assertRegex(usage, rf"{flag}\b")
        self.assertGreater(len(accepted), 5)
        for flag in accepted:
            value = [] if flag.startswith(("--enable", "--trust")) else ["x"]
            # Known flags come as far as the model that is missing.
            result = subprocess.run([str(BUILD / "millrace"), "serve", flag, *value, "--model", "/-"],
                                    capture_output=True, text=True, timeout=TIMEOUT)
            self.assertIn("/- is not a directory", result.stderr, flag)


class Packed(unittest.TestCase):
    """The packages that cpack makes of the build."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        generators = ["TGZ"] + ["DEB"] * all(shutil.which(t) for t in ("dpkg-shlibdeps", "file"))
        for generator in generators:
            run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", generator, "-B",
                cls.folder.name)
        cls.packages = sorted(p for p in Path(cls.folder.name).iterdir() if p.is_file())

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def package(self, suffix):
        found = [p for p in self.packages if p.name.endswith(suffix)]
        if not found and suffix == ".deb":
            self.skipTest("no dpkg-shlibdeps or no file here")
        self.assertEqual(len(found), 1, self.packages)
        return found[0]

    def test_the_tarball_has_one_folder_with_everything(self):
        with tarfile.open(self.package(".tar.gz")) as archive:
            members = archive.getmembers()
        tops = {m.name.split("/")[0] for m in members}
        self.assertEqual(len(tops), 1)
        top = tops.pop()
        self.assertRegex(top, r"^millrace-\d+\.\d+\.\d+-Linux$")
        names = {same_library_dir(m.name[len(top) + 1:]) for m in members}
        self.assertEqual(set(FILES) - names, set())
        program = next(m for m in members if m.name.endswith("bin/millrace"))
        self.assertTrue(program.mode & stat.S_IXUSR)

    def test_the_tarballs_program_runs_where_it_is_unpacked(self):
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(self.package(".tar.gz")) as archive:
                archive.extractall(folder)
            program = next(Path(folder).glob("*/bin/millrace"))
            answer = run(program, "generate", "Once upon a time", "-n", "3", "--temp", "0", cwd="/")
            self.assertTrue(answer.strip())

    def test_the_debian_package_has_everything_under_usr(self):
        listing = run("dpkg-deb", "-c", self.package(".deb")).splitlines()
        names = set()
        for line in listing:
            mode, owner, *_ = line.split()
            name = line.split(" ./", 1)[1].split(" -> ")[0]
            self.assertEqual(owner, "root/root", line)
            self.assertNotIn("w", mode[5] + mode[8] if not mode.startswith("l") else "", line)
            if not name.endswith("/"):
                names.add(same_library_dir(name.removeprefix("usr/")))
                self.assertTrue(name.startswith("usr/"), name)
        self.assertEqual(set(FILES) - names, set())

    def test_the_debian_package_names_the_libraries_that_the_program_needs(self):
        package = self.package(".deb")
        field = lambda name: run("dpkg-deb", "-f", package, name).strip()
        self.assertEqual(field("Package"), "millrace")
        depends = field("Depends")
        for library in ["libc6", "libstdc++6", "libssl3", "libhwloc15", "libboost-json1.81", "libspdlog1",
                        "libprometheus-cpp-core1", "liburing2"]:
            self.assertIn(library, depends)
        self.assertNotIn("-dev", depends)

    def test_installing_the_debian_package_starts_and_enables_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "-e", self.package(".deb"), folder)
            scripts = {p.name: p.read_text() for p in Path(folder).iterdir()
                       if p.name in ("preinst", "postinst", "prerm", "postrm")}
            self.assertEqual(set(scripts), {"postinst", "prerm", "postrm"})
            for name, text in scripts.items():
                subprocess.run(["sh", "-n"], input=text, text=True, check=True, timeout=TIMEOUT)
                code = [l for l in text.splitlines() if not l.startswith("#")]
                for word in ["enable", "preset", "adduser", "useradd", "restart", " start "]:
                    self.assertFalse(any(word in line for line in code), f"{name}: {word}")

    def test_lintian_finds_no_error(self):
        package = self.package(".deb")
        if not shutil.which("lintian"):
            self.skipTest("no lintian here")
        # There is no changelog: the history is the repository's. The package is nobody's upload.
        known = "no-changelog,bogus-mail-host,shared-library-lacks-prerequisites"
        result = subprocess.run(["lintian", "--fail-on", "error", "--suppress-tags", known, package],
                                capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(1)).resolve().parent
    unittest.main()
