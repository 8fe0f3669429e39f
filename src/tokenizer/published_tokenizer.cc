#include "tokenizer/published_tokenizer.h"

#include <string>

#include "base/format.h"
#include "base/sha256.h"
#include "tokenizer/token_map.h"

namespace millrace {

Status check_published_token_map(std::string_view tokenizer_json, const Tokenizer& tokenizer,
                                 std::span<const PublishedTokenizer> published) {
  for (const PublishedTokenizer& known : published) {
    if (tokenizer_json.size() != known.num_bytes) continue;
    if (!sha256(tokenizer_json).starts_with(known.sha256_begin)) continue;
    std::string bytes;
    for (const int32_t id : make_token_map(tokenizer).compressed_ids) {
      for (int shift = 0; shift < 32; shift += 8) bytes += char(uint32_t(id) >> shift);
    }
    const std::string digest = sha256(bytes);
    if (digest == known.token_map_sha256) return {};
    return Error{Code::kCorrupt,
                 format("compressed token ids: found SHA-256 ", digest, ", expected ",
                        known.token_map_sha256, ", published for this tokenizer")};
  }
  return {};
}

}  // namespace millrace
