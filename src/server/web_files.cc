#include "server/web_files.h"

namespace millrace {

const WebFile* find_web_file(std::string_view path) {
  for (const WebFile& file : web_files()) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace millrace
