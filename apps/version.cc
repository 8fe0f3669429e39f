#include <string>
#include <string_view>

#include "base/format.h"
#include "commands.h"
#include "engine/loaded_model.h"

namespace millrace {

std::string version_text() {
  ThreadPool pool(1);
  KernelContext ctx(pool);
  std::string text = format("millrace ", MILLRACE_VERSION, "\n");
  if (!std::string_view(MILLRACE_COMMIT).empty()) text += "commit " MILLRACE_COMMIT "\n";
  text += "compiler " MILLRACE_COMPILER "\n";
  const auto add = [&](const KernelTable& table) {
    text += format("numerics ", numerics_id(numerics_digest(table, ctx), Numerics::kReference), " ",
                   table.name, "\n");
  };
  for (const KernelTable* table : fast_kernels()) add(*table);
  add(ref_kernels());
  text.pop_back();
  return text;
}

}  // namespace millrace
