#pragma once

#include <span>
#include <string_view>

namespace millrace {

// A file of the folder web/, as it was when the program was built.
struct WebFile {
  std::string_view path;  // below web/
  std::string_view content_type;
  std::string_view content;
};

// In the file that the build makes of the folder.
std::span<const WebFile> web_files();

const WebFile* find_web_file(std::string_view path);  // null: there is no such file

}  // namespace millrace
