#pragma once

// A page of a mapped file that cannot be read (the file became shorter, its disk failed) ends the
// program with SIGBUS, and nothing else can be done: whoever reads it has no way to fail. These
// functions let the program say which file it was.

#include <cstddef>
#include <string>

namespace millrace {

// From now on SIGBUS writes one line to stderr and then ends the program as before. For main():
// a library leaves signals alone.
void report_mapping_faults();

// Mappings the line can name, by what MappedFile maps. Any thread. Beyond 256 at a time, or with
// names longer than 255 bytes, the line says less.
void note_mapping(const std::string& path, const void* data, size_t size);
void forget_mapping(const void* data);

}  // namespace millrace
